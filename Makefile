# Two commands matter: `make demo` and `make test`. Each sets up whatever it needs first.
# Needed beforehand: git, make and Python 3.11 or newer. PYTHON=... chooses the interpreter.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2
ARGS ?=
# Of the examples in the long tests. The others take the same ones each time (tests/conftest.py).
SEED := $(or $(SEED),$(shell date +%s))

# Airflow takes twice as long to import without compiled files, and tests start many processes.
export PYTHONDONTWRITEBYTECODE :=

# What Spark and Airflow need to find: the Java to run on, this environment's Spark (whose own search
# for it breaks at a space in the path) and its Python for Spark's workers (Spark takes whatever
# `python3` is on PATH otherwise), and an Airflow home of our own.
RUN = JAVA_HOME="$$($(BIN)/python tools/java_home.py)" && export JAVA_HOME && \
	SPARK_HOME="$$(echo "$(CURDIR)"/$(VENV)/lib/python3.*/site-packages/pyspark)" && export SPARK_HOME && \
	PATH="$(CURDIR)/$(BIN):$$JAVA_HOME/bin:$$PATH" SPARK_LOCAL_IP=127.0.0.1 \
	PYSPARK_PYTHON="$(CURDIR)/$(BIN)/python" PYSPARK_DRIVER_PYTHON="$(CURDIR)/$(BIN)/python"

# Jobs of tests are over before a JVM's second compiler pays: starting Spark takes half the processor.
TEST_RUN = $(RUN) JDK_JAVA_OPTIONS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC" AIRFLOW_HOME="$(CURDIR)/.airflow"

# The official library's second major version needs an interpreter of its own.
OFFICIAL2 = ICECHUNK2_PYTHON="$$($(BIN)/python tools/official2.py)" && export ICECHUNK2_PYTHON &&

.DEFAULT_GOAL := help
.PHONY: help demo demo-ui ui test-ui screenshots test test-long test-matrix bench lint format docs setup constraints release clean

help: ## list these targets
	@echo "Targets (PYTHON=$(PYTHON)):"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | \
		while IFS='|' read -r name text; do printf '%-14s %s\n' "$$name" "$$text"; done

demo: setup ## the tour: Airflow and Spark on this machine, from an empty folder to a picture
	@$(RUN) $(BIN)/python -m tools.demo $(ARGS)

demo-ui: setup ## Airflow's web interface with the example DAGs and their connections; Ctrl-C ends it
	@$(RUN) $(BIN)/python -m tools.demo.ui $(ARGS)

test: lint ## lint, then every test that takes seconds; ARGS=... go to pytest
	@$(OFFICIAL2) $(TEST_RUN) $(BIN)/python -m pytest -m "not long" -n $(WORKERS) --dist loadgroup $(ARGS)

test-long: setup ## the tests that take minutes
	@echo "Random examples begin with SEED=$(SEED)"
	@$(OFFICIAL2) $(TEST_RUN) $(BIN)/python -m pytest -m long \
		--hypothesis-profile=random --hypothesis-seed=$(SEED) $(ARGS)

test-matrix: setup ## test each supported release in its own environment and write docs/compatibility.md; ARGS="run ROW"
	@$(TEST_RUN) $(BIN)/python -m tools.matrix $(ARGS)

ui: ## build the page of the repository browser (needs Node 20 or newer; the result is committed)
	@command -v npm >/dev/null 2>&1 || { echo "There is no npm: install Node 20 or newer." >&2; exit 1; }
	@cd airflow_provider_icechunk/browser/ui && npm ci && npm run build

test-ui: setup ## test the browser page in a real web browser, on its own and inside Airflow
	@$(BIN)/python -m tools.screenshots.chromium
	@$(TEST_RUN) $(BIN)/python -m pytest -m "ui or not long" tests/browser $(ARGS)

screenshots: setup ## take the screenshots of docs/browser.md again
	@$(BIN)/python -m tools.screenshots.chromium
	@$(BIN)/python -m tools.screenshots $(ARGS)

bench: setup ## measure this machine and compare with the official library
	@$(OFFICIAL2) $(RUN) AIRFLOW_HOME="$(CURDIR)/.airflow" $(BIN)/python -m benchmarks $(ARGS)

lint: setup ## ruff, its formatter, mypy and the import contracts
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

format: setup ## let ruff fix what it can
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

docs: setup ## build the documentation into docs/_build/html, warnings are errors
	@$(BIN)/sphinx-build -W --keep-going -q -b html docs docs/_build/html
	@echo "Open docs/_build/html/index.html"

setup: ## create .venv with the pinned versions (the other targets do this themselves)
	@command -v "$(PYTHON)" >/dev/null 2>&1 || { \
		echo "There is no '$(PYTHON)' on PATH. Install Python 3.11 or newer, or name one: make $(MAKECMDGOALS) PYTHON=/path/to/python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Python 3.11 or newer is needed, '$(PYTHON)' is older or does not run. Name another one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@"$(PYTHON)" tools/bootstrap.py "$(VENV)"

constraints: setup ## resolve constraints.txt again (for Python 3.11 and later at once)
	@$(BIN)/python tools/pin.py $(ARGS)

release: setup ## build and check what is released; uploads nothing
	@$(BIN)/python -m tools.release

clean: ## remove everything these targets made
	rm -rf $(VENV) .venv-icechunk2 .venv-official-* .matrix .java .azurite .demo .airflow docs/_build \
		.mypy_cache .ruff_cache .pytest_cache \
		.hypothesis .import_linter_cache .coverage spark-warehouse metastore_db derby.log \
		build dist *.egg-info
	find . -name __pycache__ -type d -not -path './.git/*' -prune -exec rm -rf {} +
