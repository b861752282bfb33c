# Every target sets up what it needs; nothing needs installing first except make and any Python from 3.10 with its venv
# module. uv installs where pip can bring it and has no index of its own, else pip does.

PYTHON ?= python3
ARGS ?=
VENV := .venv/bin
NOX := $(VENV)/nox -f tests/noxfile.py
STAMP := .venv/.made-with-$(shell $(PYTHON) -c 'import platform; print(platform.python_version())')
SOURCES := middleware tests examples docs

# Where it is set, each of the many programs that are started would compile all that it imports, each time.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup test test-all test-lowest test-pythons check format format-check lint types architecture coverage docs fuzz demo bench bench-check bench-docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP)  ## create or update .venv, with everything for work on this repository

$(STAMP): pyproject.toml
	@echo "setting up .venv"
	@$(PYTHON) -m venv --clear .venv
	@$(VENV)/pip config list | grep -E '\.(index-url|no-index)=' > /dev/null || $(VENV)/pip install --quiet uv || true
	@if test -x $(VENV)/uv && $(VENV)/uv pip install --quiet --python $(VENV)/python -e '.[dev]'; then :; else \
		echo "pip installs, which takes minutes"; $(VENV)/pip uninstall --quiet --yes uv; $(VENV)/pip install --quiet -e '.[dev]'; fi
	@touch $@

test: setup  ## run the tests, except the slow ones, with the newest SDK and FastMCP (ARGS="-k name" goes to pytest)
	@$(NOX) -s quick -- $(ARGS)

test-all: setup  ## run the tests with both generations of the SDK and FastMCP, as `make check` does
	@$(NOX) -s legacy main -- $(ARGS)

test-lowest: setup  ## run all tests with every dependency of the package at its lower bound
	@$(NOX) -s lowest -- $(ARGS)

test-pythons: setup  ## run all tests with each supported Python that is found here and both generations
	@$(NOX) -s pythons -- $(ARGS)

check: setup  ## the whole gate, the quick checks first; CI runs its parts side by side
	@$(MAKE) --no-print-directory format-check lint architecture
	@$(MAKE) --no-print-directory --keep-going --jobs=2 types docs bench-check; checked=$$?; \
		$(MAKE) --no-print-directory coverage && exit $$checked

format: setup  ## format the code and fix what the linter can fix
	$(VENV)/ruff check --fix-only .
	$(VENV)/ruff format .

format-check: setup  ## check the format only
	$(VENV)/ruff format --check .

lint: setup  ## run the linter only
	$(VENV)/ruff check .

types: setup  ## mypy, strict, on the package, the tests and the examples; tests/test_types.py has the types that users see
	$(VENV)/mypy

architecture: setup  ## the architecture rules: layers, cycles, lengths, imports
	$(VENV)/python -m pytest -q tests/test_architecture.py

coverage: setup  ## the tests in both environments, with 100% branch coverage over all of them
	@$(NOX) -s coverage -- $(ARGS)

docs: setup  ## build the documentation; a warning is an error
	$(VENV)/sphinx-build -W --keep-going -n -q -b html docs docs/_build/html

fuzz: setup  ## ten minutes of mutated tokens, bodies, streams, states, paths and URIs each (ARGS="--seconds 60 --jobs 2")
	$(VENV)/python -m tests.tools.fuzz $(ARGS)

demo: setup  ## a small server with sessions, and a client that uses it
	@$(VENV)/python examples/demo.py

bench: setup  ## measure what a request costs, side by side with others (ARGS="--quick trivial")
	$(VENV)/python -m tests.tools.benchmarks $(ARGS)

bench-check: setup  ## count instructions, and fail if they exceed the budgets
	$(VENV)/python -m tests.tools.benchmarks --check

bench-docs: setup  ## measure everything, and put it into docs/performance.md and docs/project/benchmarks.md
	$(VENV)/python -m tests.tools.benchmarks --write-docs

.PHONY: release clients compatibility conformance demo-cluster crash-trials observe

release: setup  ## commit and tag a version, which a push then publishes (VERSION=0.2.0)
	@$(VENV)/python .ci/release.py $(VERSION)

observe: setup  ## sessions in a real Phoenix and MLflow, asserted, and left open (ARGS="--only phoenix --no-wait")
	@PYTHONPATH=tests:tests/support:tests/tools $(VENV)/python -m observe $(ARGS)

compatibility: setup  ## try every client on every server, in both environments, and put the table into the docs
	@$(NOX) -s legacy --install-only
	@$(VENV)/python -m tests.tools.compatibility $(ARGS)

clients: setup  ## try the clients of agent frameworks, each in its own environment, and put the table into the docs (ARGS="--client Strands")
	@test -x $(VENV)/uv || $(VENV)/pip install --quiet uv
	@$(VENV)/python -m tests.tools.frameworks $(ARGS)

conformance: setup  ## the official conformance suite, with and without the middleware (ARGS="--set 2026-07-28", --write-docs)
	@$(VENV)/python -m tests.tools.conformance $(ARGS)

demo-cluster: setup  ## servers behind nginx that are replaced under load, and no session is lost
	@$(VENV)/python examples/demo_cluster.py $(ARGS)

crash-trials: setup  ## 200 kills on each durable store, then faults of Redis (ARGS="--store redis --cycles 20")
	$(VENV)/python -m tests.tools.crash $(ARGS)
	$(VENV)/python -m tests.tools.crash --faults

clean:  ## remove what was built, and the virtual environments
	rm -rf .venv .venv-* .nox .coverage .coverage.* build dist docs/_build \
		.mypy_cache .pytest_cache .ruff_cache .hypothesis
	rm -rf middleware/*.egg-info
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
