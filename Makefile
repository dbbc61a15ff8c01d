# Everything sets itself up: `make demo` and `make test` need nothing but Python 3.11-3.13 and make.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	$$p -c 'import sys; sys.exit(not ((3, 11) <= sys.version_info < (3, 14)))' 2>/dev/null && { echo $$p; break; }; done)
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 3

.DEFAULT_GOAL := help
.PHONY: help demo run test coverage lint types check property backlog clean

help: ## what can be made
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

$(VENV)/.user: pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "PayLatch needs Python 3.11, 3.12 or 3.13 on PATH (or PYTHON=/path/to/python)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[embedded]'
	@touch $@

$(VENV)/.dev: $(VENV)/.user
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.user ## the main job, end to end, with everything it needs started for it
	@$(BIN)/paylatch demo

run: $(VENV)/.user ## the same stack, left up to try by hand
	@$(BIN)/paylatch run

test: $(VENV)/.dev ## all tests
	@$(BIN)/python -m pytest -n $(WORKERS)

coverage: $(VENV)/.dev ## all tests, with branch coverage of every process; takes half as long again
	@$(BIN)/coverage erase
	@$(BIN)/python -m pytest -n $(WORKERS) --cov --cov-report=term

lint: $(VENV)/.dev ## style, formatting and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(VENV)/.dev ## mypy, strict
	$(BIN)/mypy

property: $(VENV)/.dev ## the property tests, for longer
	PAYLATCH_TEST_EXAMPLES=5000 $(BIN)/python -m pytest tests/property -n $(WORKERS)

check: lint types test ## what CI runs

CHANGES ?= 100000
backlog: $(VENV)/.dev ## how a watcher works off 100,000 changes (CHANGES=...)
	$(BIN)/python -m tests.bench.backlog --changes $(CHANGES)

clean: ## remove the virtual environment and everything that was made
	rm -rf $(VENV) build dist .coverage* .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
