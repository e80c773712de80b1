.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
# Three at a time, a file never in two: a third of a test's time it waits for a server. Each has its own Spark and broker.
SIDE_BY_SIDE := -n 3 --dist loadfile
# Tests start many a Python: it may keep what it has compiled.
export PYTHONDONTWRITEBYTECODE :=

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Virtual environment, locked packages, Java if there is none, jars
	@$(BIN)/headrace setup spark kafka

demo: setup ## A real Kafka, a pipeline, Delta tables, and the account of it
	@$(BIN)/headrace demo

check: $(STAMP) ## Lint, format, types
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

test: $(STAMP) ## All tests but the slow ones
	@$(BIN)/headrace setup --warm spark kafka s3 s3proxy registry
	$(BIN)/python -m pytest -m "not slow" $(SIDE_BY_SIDE) $(ARGS)

test-all: $(STAMP) ## All tests
	@$(BIN)/headrace setup --warm spark kafka s3 s3proxy registry
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) $(ARGS)

bench: setup ## Side by side with the textbook and plain consumers (QUICK=1: five minutes)
	QUICK=$(QUICK) $(BIN)/python -m bench $(ARGS)

wheel: $(STAMP) ## The package, in dist/
	$(BIN)/python -m build --no-isolation --outdir dist

lock: ## Resolve the packages anew (needs uv)
	uv pip compile -q --universal --generate-hashes --no-emit-index-url --python-version 3.11 requirements.in -o requirements.txt
	uv pip compile -q --universal --generate-hashes --no-emit-index-url --python-version 3.11 requirements-dev.in -o requirements-dev.txt

clean: ## Remove what was made here; the cache of jars stays
	rm -rf .venv dist .mypy_cache .pytest_cache .ruff_cache .hypothesis headrace-demo headrace-kafka examples/*/lake bench/results

$(STAMP): requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headrace needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv && $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . && touch $@

.PHONY: help setup demo check test test-all bench wheel lock clean
