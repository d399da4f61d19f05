# `make demo` and `make test` create .venv and install what they need.

# Images of containers often set it. Without bytecode, each of the hundreds of processes that the tests start would compile
# the sources again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
# What the tests need besides torch; `make test-all` adds ray.
EXTRAS := train,evaluate,reddit,trafilatura,newspaper,datasketch,wikipedia,pybloom,object-stores,browse,search
DEMO_CORPUS ?= demo-corpus
SECONDS ?= 60

.PHONY: help setup demo test tests test-all wheel fuzz lint format bench bench-against docs clean

help:
	@echo "make demo      run the whole pipeline on a small local web, offline (about 3 minutes)"
	@echo "make test      lint, type checks, import contract, tests and the wheel"
	@echo "make test-all  the same, with slow tests"
	@echo "make wheel     build the wheel, install it in a clean environment, and use it"
	@echo "make fuzz      damaged and hostile inputs for all parsers (SECONDS=600, SEED=1)"
	@echo "make setup     install into $(VENV) only"
	@echo "make format    apply ruff's fixes and formatting"
	@echo "make lint      ruff, mypy --strict, the import contract"
	@echo "make bench     run all benchmarks"
	@echo "make bench-against REV=main  speed of every stage, compared with another revision (STAGES=filter,dedup, RUNS=3)"
	@echo "make docs      update the generated parts of docs/ and build the site in site/"
	@echo "make clean     remove $(VENV), the demo corpus and caches"

setup: $(DEV)

# Python compiles modules when they are first imported; pip would compile all, most of which are never imported (17,000
# files with the extra `dev`, 79 s of a core).
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt

# The compilation of surt shows warnings, which would otherwise be the user's, or errors of tests, at the first import.
COMPILE_SURT := $(BIN)/python -W ignore -m compileall -q $(VENV)/lib/python3*/site-packages/surt

$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit("webtext needs Python 3.11 or later, this is " + sys.version.split()[0] + "; use another one with make PYTHON=python3.11") if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(VENV)
# pip 23.2, which comes with Python 3.11, chooses versions in 46 s of a core, pip 26.3 in 16 (a dry run each, 2026-11-28).
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile pip==26.3

$(READY): pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) --editable '.[train,browse,search]'
	$(COMPILE_SURT)
	@touch $(READY)

# What tests and lint need besides, which the demo does not wait for.
$(DEV): pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) --editable '.[$(EXTRAS),dev]'
	$(COMPILE_SURT)
	@touch $(READY) $(DEV)

demo: $(READY)
	$(BIN)/webtext demo --corpus $(DEMO_CORPUS)

lint: $(DEV)
	$(BIN)/ruff check
	$(BIN)/ruff format --check --quiet
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(DEV)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# Two processes more than there are cores, since tests wait for servers, leases and processes that they started.
tests: $(DEV)
	processes=$$($(BIN)/python -c 'from pipelines.engine.executor import default_workers; print(default_workers() + 2)') && \
	$(BIN)/python -m pytest -m "not slow" --numprocesses $$processes --dist worksteal

# All at the same time: mypy has one thread, and the wheel mostly waits for the package index.
test: $(DEV)
	@$(MAKE) --no-print-directory --jobs=3 lint tests wheel

test-all: lint
	$(INSTALL) --editable '.[ray]'
	WEBTEXT_TEST_EXAMPLES=100 $(BIN)/python -m pytest

wheel: $(DEV)
	$(BIN)/python tests/wheel/check_wheel.py

fuzz: $(DEV)
	$(BIN)/python tests/fuzz/fuzz.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

bench: $(DEV)
	@for script in benchmarks/bench_*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

bench-against: $(DEV)
	$(BIN)/python benchmarks/bench_against.py $(REV) $(if $(STAGES),--stages $(STAGES)) $(if $(RUNS),--runs $(RUNS))

docs: $(DEV)
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open site/index.html"

clean:
	rm -rf $(VENV) demo-corpus dist build site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
