"""What the benchmarks against other libraries share: their environments, worker processes, and tables."""
