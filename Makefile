# Every target does its own set-up: on a fresh machine only Python 3.11+, git and make are needed.
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help setup demo check test test-all bench wheel lock clean

help: ## Show this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

$(STAMP): requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Headrace needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv .venv && $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements-dev.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e . && touch $@

setup: $(STAMP) ## Install everything: packages, Java when there is none, jars
	@$(BIN)/headrace setup --all

demo: $(STAMP) ## Run the whole way on embedded parts, ending with the proof
	@$(BIN)/headrace demo

check: $(STAMP) ## Lint, format and types
	$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

test: setup ## All tests but the slow matrices
	$(BIN)/python -m pytest -m "not slow"

test-all: setup ## All tests
	$(BIN)/python -m pytest

bench: setup ## Measure against the peers (QUICK=1: 5 minutes)
	$(BIN)/python -m bench

wheel: $(STAMP) ## Build the wheel
	$(BIN)/python -m build --wheel --no-isolation

lock: ## Pin the packages anew (needs uv)
	for name in requirements requirements-dev; do uv pip compile -q --universal --generate-hashes --no-emit-index-url --python-version 3.11 $$name.in -o $$name.txt; done

clean: ## Remove what make made here
	rm -rf .venv dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
