# Everything runs in a virtual environment inside this folder; the first `make` that needs it builds it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

.PHONY: demo test check browser format bench-broker bench-behaviour bench-client bench-ledger bench-consumer bench-spark bench-doctor bench-dashboard screenshots prove-spark clean

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "semel needs Python 3.11 or newer; run make PYTHON=/path/to/python3.11")'
	@echo "setting up $(VENV) (once) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(READY)

demo: $(READY)  ## a faulty queue through Spark into a table, its driver killed half-way; then the audit
	@$(BIN)/semel demo

check: $(READY)  ## formatter, linter, strict types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests/conftest.py

browser:  ## the tests look at pages in a Chromium: the system's, else one from apt-get where that is allowed
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		command -v $$name >/dev/null 2>&1 && exit 0; done; \
	export PATH="$$PATH:/usr/sbin:/sbin" DEBIAN_FRONTEND=noninteractive; \
	sudo=none; [ "$$(id -u)" = 0 ] && sudo=; [ "$$sudo" = none ] && sudo -n true 2>/dev/null && sudo="sudo -n"; \
	if command -v apt-get >/dev/null 2>&1 && [ "$$sudo" != none ]; then \
		echo "installing chromium with apt-get (once) ..."; \
		$$sudo apt-get install -y -qq chromium >/dev/null 2>&1 && exit 0; \
		$$sudo apt-get update -qq >/dev/null && $$sudo apt-get install -y -qq chromium >/dev/null && exit 0; fi; \
	echo "NO BROWSER: the tests need Chromium or Chrome on the PATH; install it (Debian: apt-get install chromium)" >&2; exit 1

test: check browser  ## all of `check`, then every test, on two processes
	$(BIN)/python -m pytest -n 2

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench-broker: $(READY)  ## the broker against its peers, in one run
	$(BIN)/python bench/broker.py

bench-behaviour: $(READY)  ## what the broker and its peers really do
	$(BIN)/python bench/behaviour.py

bench-client: $(READY)  ## the SQS client next to boto3
	$(BIN)/python bench/client.py

bench-ledger: $(READY)  ## the ledgers next to Powertools and idemkit
	$(BIN)/python bench/ledgers.py

bench-consumer: $(READY)  ## the consumer next to boto3 loops, Powertools, Celery and dramatiq
	$(BIN)/python bench/consumers.py

bench-spark: $(READY)  ## SQS through Spark: source, sinks, state, latency
	$(BIN)/python bench/sparks.py

bench-doctor: $(READY)  ## the doctor next to hand-written DuckDB queries, and next to the truth
	$(BIN)/python bench/doctors.py

bench-dashboard: $(READY) browser  ## pages over a million messages, redrive, and what the dashboard costs
	$(BIN)/python bench/dashboards.py

screenshots: $(READY) browser  ## every page of the dashboard, light and dark, into docs/images
	$(BIN)/python bench/screenshots.py

prove-spark: $(READY)  ## drivers of pipelines killed 20 times at random moments, for every sink; then the audit
	$(BIN)/python bench/crashes.py

clean:
	rm -rf $(VENV) bench/.envs bench/.data .mypy_cache .ruff_cache .hypothesis
