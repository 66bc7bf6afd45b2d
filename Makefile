# Every target makes or renews .venv by itself; a machine needs python3 (3.11 or newer) and make.

PYTHON ?= python3
VENV   := .venv
PY     := $(VENV)/bin/python
PIP    := $(PY) -m pip install -qq --disable-pip-version-check

ARGS          ?=
WORKERS       ?= 3
SECOND_CHANCE ?=
SYNC_DELAY_MS ?=
ONE_CORE      ?=
BENCH         ?=
SIM           ?=
SEEDS         ?= 2000
FIRST_SEED    ?=
FUZZ_SECONDS  ?= 20
CHAOS_SECONDS ?= 120

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo quick test nightly check bench sim fuzz chaos docs dist clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/.stamp-spark ## a clearing house: five nodes and Spark, killed at work; it all adds up
	@$(PY) -m examples.clearing

# More processes than a small machine has cores: half of the time tests wait for something.
# The files that take longest come first. A test that ends its process does not end the run.
PYTEST = -n $(WORKERS) --dist=loadfile --no-loadscope-reorder --max-worker-restart=8 --durations=20 $(ARGS)

# Machines that are slow where this one is fast: SYNC_DELAY_MS=5 delays every sync to the disk by
# so much, ONE_CORE=1 leaves one core to all.
SLOWER = $(if $(SYNC_DELAY_MS)$(ONE_CORE),POSTROAD_SLOW_MACHINE=1) \
	$(if $(SYNC_DELAY_MS),POSTROAD_SYNC_DELAY_MS=$(SYNC_DELAY_MS) LD_PRELOAD=$(abspath $(VENV)/slow_sync.so)) \
	$(if $(ONE_CORE),taskset -c 0)

quick: $(VENV)/.stamp-test ## the tests for every save: unit, property, a few seeds
	@POSTROAD_TIER=quick $(PY) -m pytest $(PYTEST)

# SECOND_CHANCE=1 runs a few tests that failed once more: see tests/second_chance.py.
test: $(VENV)/.stamp-test $(VENV)/.stamp-classes $(if $(SYNC_DELAY_MS),$(VENV)/slow_sync.so) ## all promises, with real servers, Spark and a browser (ARGS="-k name")
	@$(SLOWER) $(PY) -m $(if $(SECOND_CHANCE),tests.second_chance,pytest) $(PYTEST)

nightly: $(VENV)/.stamp-test $(VENV)/.stamp-classes $(VENV)/.stamp-fuzz ## everything, with seeds nobody has seen (NIGHTLY="--list" tells of what)
	@$(PY) -m tests.nightly $(NIGHTLY)

check: $(VENV)/.stamp-check ## lint, format, types, layers, spelling
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy
	@$(VENV)/bin/lint-imports --config importlinter.ini --no-cache --no-logo
	@$(PY) -m codespell_lib

bench: $(VENV)/.stamp-bench ## compare with other libraries (BENCH=name for one)
	@$(PY) -m benchmarks $(BENCH)

sim: $(VENV)/.stamp-test ## run seeded simulations (SIM=name SEEDS=count FIRST_SEED=n)
	@$(PY) -m tests.simulation $(if $(SIM),--only $(SIM)) $(if $(SEEDS),--seeds $(SEEDS)) \
		$(if $(FIRST_SEED),--first-seed $(FIRST_SEED))

fuzz: $(VENV)/.stamp-fuzz ## fuzz each decoder (FUZZ_SECONDS=20 for each)
	@FUZZ_SECONDS=$(FUZZ_SECONDS) $(PY) -m fuzz

chaos: $(VENV)/.stamp-test $(VENV)/.stamp-classes ## kill and pause real processes for longer (CHAOS_SECONDS=120)
	@POSTROAD_CHAOS_SECONDS=$(CHAOS_SECONDS) $(PY) -m pytest tests/chaos -m chaos $(ARGS)

docs: $(VENV)/.stamp-docs ## build the documentation into docs/_build
	@$(PY) -m sphinx --quiet --fail-on-warning --keep-going docs docs/_build
	@echo "docs/_build/index.html"

# The notes are what CHANGELOG.md says of this version, or of what comes next if it says nothing.
dist: $(VENV)/.stamp-test ## build the wheel, the sdist and the release notes into dist
	@$(PY) -m build --no-isolation --outdir dist .
	@awk -v version="$$($(PY) -c 'import postroad; print(postroad.__version__)')" '\
		/^## / { section = $$2 } /^## / || section == "" { next } { notes[section] = notes[section] $$0 "\n" } \
		END { printf "%s", version in notes ? notes[version] : notes["Unreleased"] }' CHANGELOG.md >dist/NOTES.md
	@ls dist/*

clean: ## remove the environment, caches and results
	@rm -rf $(VENV) $(VENV)-3.* build dist docs/_build benchmarks/out .hypothesis .import_linter_cache \
		.mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# What a user of the package installs; enough for the demo.
$(VENV)/.stamp: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "Postroad needs Python 3.11 or newer, and there is no $(PYTHON)." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Postroad needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) -V 2>&1); try make PYTHON=python3.11." >&2; exit 1; }
	@echo "Preparing $(VENV)"
	@$(PY) -c 'import pip' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) 'pip>=25.1' # It is the first that knows dependency groups.
	@$(PIP) --editable '.[node]'
	@touch $@

# Without Spark the job of the demo runs in one process.
$(VENV)/.stamp-spark: $(VENV)/.stamp
	@echo "Preparing $(VENV) (Spark, about 500 MB: the first time takes a few minutes)"
	@$(PIP) --editable '.[node,spark]' && touch $@ || \
		echo "Spark could not be installed; the demo goes on without it." >&2

# So that Spark starts in half the time.
$(VENV)/.stamp-classes: $(VENV)/.stamp-test
	@echo "Preparing $(VENV) (classes of Spark)"
	@$(PY) -m tests.support.servers.spark_classes $(VENV)/spark-classes.jsa 2>/dev/null && touch $@ || \
		echo "They could not be written; tests of Spark take longer." >&2

$(VENV)/slow_sync.so: tests/support/slow_sync.c $(VENV)/.stamp-test
	@$(PY) -m tests.support.slow_sync $@

# What some targets need besides, named like its dependency group in pyproject.toml.
$(VENV)/.stamp-%: $(VENV)/.stamp
	@echo "Preparing $(VENV) ($*)"
	@$(PIP) --editable . --group '$*'
	@touch $@
