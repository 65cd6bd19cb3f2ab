"""What runs the doctor's SQL: DuckDB in this process, or Spark."""
