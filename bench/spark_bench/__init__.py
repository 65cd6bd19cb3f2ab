"""What `bench/sparks.py` and `bench/spark_start.py` run in separate processes."""
