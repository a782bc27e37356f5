# Every target sets up what it needs: a virtual environment in .venv, installed under constraints.txt.
# To use another one: VENV=/path make test

VENV   ?= .venv
PYTHON ?= python3
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.nearhint-installed
# The virtual environment's tools find each other (protoc its plugins, pyright its interpreter).
RUN    := PATH="$(abspath $(BIN)):$$PATH"
ARGS   ?=
# Tests run in so many processes, a file at a time; a run that is timed (tests/bars.py) has one.
JOBS   ?= $(if $(NEARHINT_QUIET),0,2)
STARTED_S := $(shell date +%s)
DEMO_S    := 275
# What the demo's phases need, with little of the tuning.
LEAST_DEMO_S := 150
DESCRIPTORS := $(VENV)/.nearhint-descriptors.binpb

.DEFAULT_GOAL := help
.PHONY: help setup demo test check proto format clean

help:
	@echo 'make demo     the main job: a daemon, a real model, sentences of every length  (ARGS=…)'
	@echo 'make test     the tests, in two processes                            (JOBS=…, ARGS=…)'
	@echo 'make check    format, lint, types, import rules, spelling, protocol, layout'
	@echo 'make proto    write the generated code of the protocol'
	@echo 'make format   format and fix what can be fixed'
	@echo 'make clean    remove the virtual environment and what tools left behind'

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet \
	    -c constraints.txt -e '.[daemon,torch,demo,dev]'
	@touch $@

setup: $(STAMP)

# Five minutes from the first keystroke, an environment set up first included.
demo: $(STAMP)
	@left=$$(($(STARTED_S) + $(DEMO_S) - $$(date +%s))); \
	    $(RUN) nearhint demo --budget-s $$((left > $(LEAST_DEMO_S) ? left : $(LEAST_DEMO_S))) $(ARGS)

test: $(STAMP)
	$(RUN) python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

# One target a tool, cheapest first. `make -k check` goes on after one that fails.
CHECKS := check-format check-lint check-spelling check-layout check-imports check-generated check-protocol check-mypy check-pyright
.PHONY: $(CHECKS)
check: $(CHECKS)

check-format: $(STAMP)
	$(RUN) ruff format --check --quiet .

check-lint: $(STAMP)
	$(RUN) ruff check --output-format concise .

check-spelling: $(STAMP)
	$(RUN) codespell

check-layout: $(STAMP)
	$(RUN) python -m pytest -q tests/unit/test_layout.py

check-imports: $(STAMP)
	$(RUN) lint-imports

check-generated: $(STAMP)
	$(RUN) python proto/generate.py --check

check-protocol: $(STAMP)
	$(RUN) python proto/generate.py --descriptors $(DESCRIPTORS)
	$(RUN) buf lint $(DESCRIPTORS) --config proto/buf.yaml --exclude-path google

check-mypy: $(STAMP)
	$(RUN) mypy

check-pyright: $(STAMP)
	$(RUN) pyright --pythonpath $(BIN)/python

proto: $(STAMP)
	$(RUN) python proto/generate.py

format: $(STAMP)
	$(RUN) ruff format .
	$(RUN) ruff check --fix .

clean:
	@# An environment of another kind was not made here.
	test ! -f '$(VENV)/pyvenv.cfg' || rm -rf '$(VENV)'
	rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
