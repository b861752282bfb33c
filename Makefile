# Every target sets up what it needs, given any Python from 3.10 with its venv module.

PYTHON ?= python3
ARGS ?=
VENV := .venv/bin
NOX := $(VENV)/nox
STAMP := .venv/.made-with-$(shell $(PYTHON) -c 'import platform; print(platform.python_version())')

# Where it is set, each of the many programs that are started would compile all that it imports, each time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup servers test test-all check format lint docs demo bench fuzz mutants nightly clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP)  ## create or update .venv, with everything for work on this repository

$(STAMP): pyproject.toml
	@echo "setting up .venv, which takes a minute or two"
	@$(PYTHON) -m venv --clear .venv
	@$(VENV)/python -m pip install --quiet --upgrade "pip>=25.1"
	@$(VENV)/python -m pip install --quiet -e '.[client,fastapi,fastmcp,postgres,redis]' --group dev
	@touch $@

servers: setup  ## install the servers and tools that tests start, as root on Debian; elsewhere their tests are skipped, or fail in CI
	@$(VENV)/python tests/debian.py

test: setup  ## run the quick tests; installs Redis and PostgreSQL as root on Debian (ARGS="-k name" goes to pytest)
	@$(VENV)/python tests/debian.py redis-server postgres
	@$(NOX) -s quick -- $(ARGS)

test-all: servers  ## run the tests with both generations of the SDK and FastMCP, as `make check` does
	@$(NOX) -s legacy main -- $(ARGS)

check: lint docs servers  ## the whole gate: lint, types, docs, instruction counts, tests, coverage, other Pythons
	@$(VENV)/python -m tests.benchmarks --check
	@$(NOX) -s coverage
	@$(NOX) -t versions

format: setup  ## format the code and fix what the linter can fix
	@$(VENV)/ruff check --fix-only . && $(VENV)/ruff format .

lint: setup  ## the format, the linter, the types (mypy, strict) and the architecture rules
	@$(VENV)/ruff format --check . && $(VENV)/ruff check . && $(VENV)/mypy
	@$(VENV)/python -m pytest -q tests/test_architecture.py

docs: setup  ## build the documentation; a warning is an error
	@$(VENV)/sphinx-build -W --keep-going -n -q -b html docs docs/_build/html

demo: setup  ## a small server with sessions, and a client that uses it
	@$(VENV)/python examples/demo.py

bench: setup  ## measure side by side with others (ARGS="--quick trivial"), or count instructions (ARGS=--check)
	@$(VENV)/python -m tests.benchmarks $(ARGS)

fuzz: setup  ## the property tests, with thousands of random cases each
	@$(VENV)/python -m pytest -q -n auto --dist=worksteal --hypothesis-profile=fuzz tests/protocol tests/tokens \
		tests/server/test_paths.py tests/tools/test_fuzz_*.py $(ARGS)

mutants: servers  ## take each defence away in a copy; its tests must notice (ARGS="expiry" runs some)
	@$(VENV)/python tests/mutants.py $(ARGS)

nightly: servers  ## the slow tests, mutants, crash trials, fuzzing, the conformance suite
	@$(NOX) -s main -- -m nightly
	@$(VENV)/python -m tests.tools.crash --cycles 200
	@$(MAKE) fuzz
	@$(VENV)/python tests/mutants.py
	@$(VENV)/python -m tests.tools.conformance

clean:  ## remove what was built, and the virtual environments
	@rm -rf .venv .nox .coverage .coverage.* build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find middleware tests examples docs -name __pycache__ -type d -prune -exec rm -rf {} +
