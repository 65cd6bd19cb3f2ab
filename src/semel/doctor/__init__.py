"""The doctor: finds duplicates, their cause and the cure, from logs, queue attributes and metrics, on Spark."""
