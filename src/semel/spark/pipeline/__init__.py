"""The pipeline: one TOML file says from which queues, with which schema, into which sink; no code is needed."""
