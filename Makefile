# The two commands: `make serve` and `make test`. Each does all its set-up on a fresh machine.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVE_STAMP := $(VENV)/.installed-serve
DEV_STAMP := $(VENV)/.installed-dev
# Spin barriers of OpenMP collapse when anything else runs on the machine.
export GOMP_SPINCOUNT ?= 10000
export TOKENIZERS_PARALLELISM ?= false
# Hundreds of Python processes are started: what one has compiled, the next ones read, whatever the caller set.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: serve test test-slow lint protos peers clean

serve: $(SERVE_STAMP)
	@exec $(BIN)/quire up --demo --config deploy/quire.local.toml $(ARGS)

test: $(DEV_STAMP)
	$(BIN)/python -m pytest $(ARGS)

test-slow: $(DEV_STAMP)
	$(BIN)/python -m pytest -m slow $(ARGS)

lint: $(DEV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m protos.generate --check
	$(BIN)/buf lint
	$(BIN)/buf breaking --against protos/released.binpb

protos: $(DEV_STAMP)
	$(BIN)/python -m protos.generate

# What `python -m bench.peers` compares with, in a folder of its own; tens of minutes and several GB.
peers:
	PYTHON=$(PYTHON) bench/peers/install.sh $(ARGS)

clean:
	rm -rf $(VENV) build *.egg-info

$(VENV)/bin/python:
	@echo "creating $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Quire needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

$(SERVE_STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing pinned dependencies"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(DEV_STAMP): pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "installing pinned dependencies for development"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,dev]'
	@touch $@ $(SERVE_STAMP)
