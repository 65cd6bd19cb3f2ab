"""Real servers for the tests: each module has `running()`, which starts one and removes it with all its data."""
