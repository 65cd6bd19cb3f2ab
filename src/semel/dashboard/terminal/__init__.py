"""`semel top`: queues, dead-letter queues, workers and jobs in a terminal; it reads and acts as the pages do."""
