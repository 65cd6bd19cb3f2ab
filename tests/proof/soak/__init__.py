"""Load and soak: broker, workers and a producer at a steady rate for a long time, and far beyond it for a short one."""
