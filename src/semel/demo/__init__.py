"""`semel demo`: a faulty queue, a careless producer, a pipeline that is killed half-way, and the audit."""
