"""Load and soak: broker, workers and a producer at a steady rate for a long time, and at far too high a rate for a
short one.

`run.py` is the soak, `overload.py` the overload of a broker and of a worker. `processes.py` starts what they need,
`history.py` and `figures.py` judge the results, and `report.py` prints them. See `python -m soak --help`.
"""
