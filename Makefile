# `make run` serves the demo model, `make test` runs every test; each sets up what it needs.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

# The first of these that is Python 3.11 or newer; override with `make PYTHON=...`.
PYTHON ?= $(shell for python in python3.11 python3; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)
VENV := .venv
PY := $(VENV)/bin/python
INSTALLED := $(VENV)/.installed
LOG := $(VENV)/setup.log

PROMPT ?= Write a Python function that checks whether a number is prime, and explain how it works.
# The n-gram store that `make decode` drafts from and teaches: a URL, `embedded:` for a server of its own, or nothing.
STORE ?= embedded:
ARGS ?=
export PROMPT DATA STORE

# Threads spin briefly while they wait, not long: ten times faster where other programs run too (docs/log.md).
export GOMP_SPINCOUNT ?= 30000

# Runs a step with its output in the log, which is shown if the step fails.
quietly = { $(1); } >>$(LOG) 2>&1 || { cat $(LOG) >&2; exit 1; }

# Installs the Debian package $(2) if command $(1) is missing, where apt and root are there; without it less is done.
apt = command -v $(1) >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { \
	echo "installing the Debian package $(2)"; { apt-get update -qq && \
	RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $(2); } >>$(LOG) 2>&1; }; } || \
	echo "note: $(1) is missing (Debian: apt-get install $(2)); $(3)" >&2

.PHONY: help setup run decode test test-gpu check bench clean lock

help: ## Show what there is to make
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

setup: $(INSTALLED) ## Install the dependencies into .venv and prepare the demo model
	@$(call apt,g++,g++,the model runs slower without it)
	@$(PY) -m racer.model.demo >/dev/null

run: setup ## Serve the demo model on HOST and PORT, OpenAI-compatible, until Ctrl-C
	@exec $(PY) -m deployments serve --host "$${HOST:-127.0.0.1}" --port "$${PORT:-8000}" $(ARGS)

decode: setup ## Decode PROMPT="..." with the demo model, accepted draft tokens coloured
	@$(PY) -m racer run --prompt "$$PROMPT" $${STORE:+--store "$$STORE"} $(ARGS)

test: setup ## Run the tests; ARGS="-k name" chooses some
	@$(call apt,redis-server,redis-server,tests of the datastore are skipped)
	@$(call apt,prometheus,prometheus,tests of alerts and dashboard are skipped)
	@$(PY) -m tests $(ARGS)

check: $(INSTALLED) ## Format, lint and types
	@$(PY) -m ruff format --check --quiet . || { echo "run '$(PY) -m ruff format .'" >&2; exit 1; }
	@$(PY) -m ruff check .
	@$(PY) -m mypy

bench: setup ## Compare drafts with plain decoding on DATA=file.jsonl
	@test -n "$$DATA" || { echo "usage: make bench DATA=file.jsonl (docs/benchmarks.md says where to get one)" >&2; exit 2; }
	@$(PY) -m racer bench --data "$$DATA" $(ARGS)

test-gpu: setup ## Check ids and time steps on a GPU; one JSON line
	@$(PY) bench/gpu_check.py $(ARGS)

clean: ## Remove .venv and caches in this folder (the demo model's cache stays)
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

lock: ## Write constraints.txt anew from what pyproject.toml allows today
	@rm -rf $(VENV).lock && $(PYTHON) -m venv $(VENV).lock
	$(VENV).lock/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.*' -e '.[dev]'
	@{ echo "# Exact versions of everything that 'make setup' installs. Written by 'make lock'; do not edit."; \
		$(VENV).lock/bin/python -m pip freeze --exclude-editable | sed 's/+[a-z0-9.]*$$//'; } > constraints.txt
	@rm -rf $(VENV).lock

$(PY):
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or newer is needed (Debian: apt-get install python3)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null || { \
		echo "error: $(PYTHON) cannot make virtual environments; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)

$(INSTALLED): $(PY) pyproject.toml constraints.txt
	@echo "installing dependencies into $(VENV) (a few minutes, once)"
	@: > $(LOG)
	@$(call quietly,$(PY) -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]')
	@touch $@
