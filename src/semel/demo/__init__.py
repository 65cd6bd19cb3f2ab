"""`semel demo`: a faulty queue, workers or Spark drivers that are killed, and an audit of the result."""
