.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.ready
# Three workers, each with its own Spark and broker; a file runs in one worker. Tests wait for servers a third of the time.
PARALLEL := -n 3 --dist loadfile
# Batches that `make test` runs in one process, once more on a Spark cluster.
ON_CLUSTER := tests/fault/test_crash_points.py tests/fault/test_deduplicate.py tests/fault/test_evolution.py \
	tests/fault/test_overwrite.py tests/fault/test_upsert.py tests/service/test_avro_pipeline.py \
	tests/service/test_contract.py tests/service/test_registered_protobuf.py
# Tests start many Python processes: let them write bytecode.
export PYTHONDONTWRITEBYTECODE :=

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## Create the virtual environment; install locked packages, Java if required, jars
	@$(BIN)/headrace setup --no-archives

demo: setup ## Run a pipeline from a local Kafka broker to Delta tables (MASTER=cluster: on a Spark cluster; CONSOLE=1: with the console)
	@$(BIN)/headrace demo $(if $(MASTER),--master $(MASTER)) $(if $(CONSOLE),--console)

check: $(STAMP) ## Run linter, format check and type checker
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

test: $(STAMP) ## Run all tests except slow ones
	@$(BIN)/headrace setup spark kafka s3 s3proxy registry msk kdc --pack
	$(BIN)/python -m pytest -m "not slow" $(PARALLEL) $(ARGS)

test-all: $(STAMP) ## Run all tests
	@$(BIN)/headrace setup spark kafka s3 azure gcs s3proxy registry msk kdc --pack
	$(BIN)/python -m pytest $(PARALLEL) $(ARGS)
	$(BIN)/python -m pytest --on-cluster -m "not slow" $(ON_CLUSTER) $(ARGS)

bench: $(STAMP) ## Compare with Spark and plain consumers (QUICK=1: five minutes)
	@$(BIN)/headrace setup
	QUICK=$(QUICK) $(BIN)/python -m bench $(ARGS)

wheel: $(STAMP) ## Build the package in dist/
	$(BIN)/python -m build --no-isolation --outdir dist

lock: ## Update the locked packages (requires uv)
	uv pip compile -q --universal --generate-hashes --no-emit-index-url --python-version 3.11 requirements.in -o requirements.txt
	uv pip compile -q --universal --generate-hashes --no-emit-index-url --python-version 3.11 requirements-dev.in -o requirements-dev.txt

clean: ## Remove generated files, except the cache of jars
	rm -rf .venv dist .mypy_cache .pytest_cache .ruff_cache .hypothesis headrace-demo headrace-kafka examples/*/lake bench/results

$(STAMP): requirements-dev.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is required: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv && $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-dev.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e . && touch $@

.PHONY: help setup demo check test test-all bench wheel lock clean
