# `make attack-table` and `make test` are complete on a fresh machine: they create .venv and install into it once.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV ?= .venv
FLOWER_VENV ?= .venv-flower
PRESET ?= quick
DATASETS ?=
DEVICE ?= auto
SEEDS ?=
VICTIMS ?=
DATA_DIR ?=
OUT ?=
WORKERS ?= 2
PYTEST_ARGS ?=
FULL ?=
PART ?= all
SETTINGS ?=
TIME ?= 3600
SEED ?= 0
BENCH_ARGS ?=
KILLS ?= 1000

IN_VENV := $(VENV)/bin/python
READY := $(VENV)/.installed
IN_FLOWER := $(FLOWER_VENV)/bin/python
# Workers that take over each other's tests from the end: the tests of a module stay together, and share what it made once.
SHARED_OUT = -n $(WORKERS) --dist worksteal
# One thread a worker: the tests' tensors are small, and threads of several workers fight over the cores.
PYTEST = OMP_NUM_THREADS=1 $(IN_VENV) -m pytest $(SHARED_OUT) -m "$(1)" $(PYTEST_ARGS)

.PHONY: help setup attack-table ladder test test-thorough test-portable test-flower fuzz check docs browser ray bench chaos clean

help: ## list the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F '\t' '{ printf "  make %-14s %s\n", $$1, $$2 }'
	@printf '%s\n' '' \
	  'Settings of attack-table and ladder:' \
	  '  PRESET=smoke|quick|standard|paper (now: $(PRESET))' \
	  '  DATASETS="cifar10 office10"   (now: $(or $(DATASETS),the default of each))' \
	  '  DEVICE=cpu|cuda|auto          (now: $(DEVICE))' \
	  '  SEEDS=5  VICTIMS=16  DATA_DIR=folder  OUT=folder' \
	  '  FULL=1                        of attack-table: 64 victims a seed, five seeds, three data sets' \
	  'Of test, test-thorough, test-portable and check: WORKERS=2 PYTEST_ARGS="-k name"; of test-flower: PYTEST_ARGS' \
	  'Of the environments: PYTHON=python3.12 VENV=.venv FLOWER_VENV=.venv-flower' \
	  'Of test-portable: PART=numerical SETTINGS="lowest threads-4" (all: one choice at a time). Of bench: BENCH_ARGS="--short --repeats 1"' \
	  'Of fuzz: TIME=3600 (seconds) SEED=0 (of the mutations)' \
	  'Of chaos: KILLS=1000 TIME=3600 (seconds) SEED=0'

setup: $(READY) ## create the environment in .venv (every other command does so when it is missing)

# A .venv whose interpreter or pip does not run (removed, or interrupted half-way) is made anew.
$(READY): pyproject.toml constraints.txt
	@if ! $(IN_VENV) -m pip --version >/dev/null 2>&1; then \
	  command -v $(PYTHON) >/dev/null || { echo "error: there is no '$(PYTHON)'; name a Python 3.11-3.13, e.g. make PYTHON=python3.12" >&2; exit 2; }; \
	  $(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	    echo "error: privbench needs Python 3.11-3.13, but '$(PYTHON)' is $$($(PYTHON) --version 2>&1); name another, e.g. make PYTHON=python3.12" >&2; exit 2; }; \
	  $(PYTHON) -m venv --clear $(VENV); \
	fi
	$(IN_VENV) -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

CHOSEN = --preset $(PRESET) --device $(DEVICE) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(VICTIMS),--victims $(VICTIMS)) \
	  $(if $(DATA_DIR),--data-dir "$(DATA_DIR)") $(if $(OUT),--out "$(OUT)")

attack-table: $(READY) ## train, attack, write the privacy table and the grids: a first look in minutes, with FULL=1 the table to publish
	$(VENV)/bin/privbench table $(if $(FULL),--full) $(if $(DATASETS),--datasets "$(DATASETS)") $(CHOSEN)

ladder: $(READY) ## attack the five columns by the ladder, before and after training (finished cells are reused)
	$(VENV)/bin/privbench study ladder --datasets "$(or $(DATASETS),photos digits)" $(CHOSEN)

test: $(READY) ## run the tests, but for those that take a second or more each
	$(call PYTEST,not slow and not thorough)

test-thorough: $(READY) ## run what `make test` leaves out: tests of a second or more each, and claims that take minutes to measure
	$(call PYTEST,slow or thorough)

test-portable: $(READY) ## run the tests under every arithmetic that this processor offers, and say what passed where
	$(IN_VENV) -m tests.portable --part $(PART) $(if $(SETTINGS),--settings $(SETTINGS)) -- $(SHARED_OUT) $(PYTEST_ARGS)

# An environment of its own: Flower wants older versions of what privbench needs. Capturing needs torch (with its filelock),
# safetensors and NumPy alone.
$(FLOWER_VENV)/.installed: tests/flower/requirements.txt constraints.txt
	$(PYTHON) -m venv --clear $(FLOWER_VENV)
	$(IN_FLOWER) -m pip install --disable-pip-version-check -c constraints.txt torch safetensors
	$(IN_FLOWER) -m pip install --disable-pip-version-check --no-deps -r tests/flower/requirements.txt
	$(IN_FLOWER) -m pip install --disable-pip-version-check --no-deps -e .
	@touch $@

test-flower: $(FLOWER_VENV)/.installed $(READY) ## capture real Flower simulations, compare with what their server received, audit one (minutes; an environment of its own)
	OMP_NUM_THREADS=1 PRIVBENCH_PYTHON="$(abspath $(VENV))/bin/python" $(IN_FLOWER) -m pytest tests/flower $(PYTEST_ARGS)

fuzz: $(READY) ## mutate files of every kind for TIME seconds and see that each is refused in one line or read as what it was
	OMP_NUM_THREADS=1 $(IN_VENV) -m tests.fuzz --time $(TIME) --seed $(SEED)

check: $(READY) ## check format, lint and types, then run the tests, which hold the layers of imports
	$(IN_VENV) -m ruff format --check .
	$(IN_VENV) -m ruff check .
	$(IN_VENV) -m mypy
	@echo "Files of more than 300 lines, which could be two:"; wc -l $$(git ls-files '*.py') | awk '$$1 > 300 && $$2 != "total"'
	$(call PYTEST,not slow and not thorough)

docs: $(READY) ## write the generated blocks of README.md and docs/ again, then the site of the documents to build/site
	$(IN_VENV) -m reports.documents
	NO_MKDOCS_2_WARNING=1 $(IN_VENV) -m mkdocs build --quiet

# Chromium comes from the packages of Debian or Ubuntu, as root: 113 MB. Elsewhere install it first.
$(VENV)/.browser-installed: $(READY)
	$(IN_VENV) -m pip install --disable-pip-version-check -c constraints.txt -e '.[browser]'
	@command -v chromium >/dev/null || { apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium; }
	@touch $@

browser: $(VENV)/.browser-installed ## install what the tests of HTML pages need: Playwright, and Chromium from the distribution

$(VENV)/.ray-installed: $(READY)
	$(IN_VENV) -m pip install --disable-pip-version-check -c constraints.txt -e '.[ray]'
	@touch $@

ray: $(VENV)/.ray-installed ## install what `--engine ray` and its tests need

# The package compared with is installed without its own requirements (data sets, language models), which no attack here uses.
$(VENV)/.bench-installed: $(READY)
	$(IN_VENV) -m pip install --disable-pip-version-check --no-deps -c constraints.txt breaching
	$(IN_VENV) -m pip install --disable-pip-version-check -c constraints.txt omegaconf
	@touch $@

bench: $(VENV)/.bench-installed ## measure speed as ratios against a plain sequential loop
	$(IN_VENV) -m benchmarks $(BENCH_ARGS)

# One thread: a process with threads cannot be forked, and every run that is killed is a fork.
chaos: $(READY) ## kill runs a thousand times and compare what they end with (about an hour); writes docs/reliability.md, with fewer KILLS to the terminal
	OMP_NUM_THREADS=1 $(IN_VENV) -m benchmarks.chaos --kills $(KILLS) --seconds $(TIME) --seed $(SEED) $(if $(filter 1000,$(KILLS)),--report docs/reliability.md)

clean: ## remove the environments and all caches; results in runs/ stay
	rm -rf $(VENV) $(FLOWER_VENV) build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
