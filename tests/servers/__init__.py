"""Real servers for the tests: each module has `running()`, which starts one and takes it down with all its data."""
