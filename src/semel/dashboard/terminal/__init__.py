"""`semel top`: queues, dead letters, workers and jobs in a terminal, over the same house and desk as the pages."""
