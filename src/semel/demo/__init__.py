"""`semel demo`: a faulty queue worked off by a handler, or read by a Spark pipeline, with kills; then the audit."""
