"""On the PYTHONPATH of a driver that a test kills, and of its executors: kills them at a crash point."""

import os

if "SEMEL_SPARK_KILL" in os.environ:
    from semel.testing import spark_crash_points

    spark_crash_points.register()
