"""On the PYTHONPATH of a driver that is to be killed, and of its executors: has them killed at a crash point."""

import os

if "SEMEL_SPARK_KILL" in os.environ:
    from semel.testing import spark_crash_points

    spark_crash_points.register()
