# Two commands on a bare machine with Python 3.11+: `make train` and `make test`.

# the first of these that runs and is new enough; `make PYTHON=...` for another
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
  $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)
BIN := .venv/bin
ENV ?= HalfCheetah-v5
STEPS ?= 300000
ALGO ?= p3o
SEED ?= 0

.PHONY: help train test test-all peers lock clean

help:
	@echo "make train [ENV=HalfCheetah-v5] [STEPS=300000] [ALGO=p3o] [SEED=0]   train with a live display"
	@echo "make test        format, lint, types and tests"
	@echo "make test-all    the same with every extra and the slow tests"
	@echo "make peers       speed against Stable-Baselines3 and SBX"
	@echo "make lock        renew requirements/*.txt"

train: .venv/train
	@$(BIN)/p3o train $(ENV) --steps $(STEPS) --algo $(ALGO) --seed $(SEED)

test: .venv/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n $(shell nproc 2>/dev/null || echo 2)

test-all: .venv/test-all
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n $(shell nproc 2>/dev/null || echo 2) --slow

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: make PYTHON=path"; exit 2; }
	@$(PYTHON) -m venv .venv

.venv/train: requirements/train.txt pyproject.toml | .venv/bin/python
	@echo "installing into .venv ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/train.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

.venv/test: requirements/test.txt .venv/train
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/test.txt
	@touch $@

.venv/test-all: requirements/test-all.txt .venv/test
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements/test-all.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 "stable-baselines3>=2.5"
	@touch $@

# Speed against Stable-Baselines3 and SBX, in an environment of its own (torch is large).
peers: .venv-peers/ready
	.venv-peers/bin/python benchmarks/peers.py --write docs/performance.md

.venv-peers/ready: requirements/train.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed"; exit 2; }
	@$(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check -r requirements/train.txt
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 stable-baselines3 matplotlib
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check sbx-rl || echo "SBX does not install here: left out"
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

lock:
	uv pip compile pyproject.toml --universal --python-version 3.11 --no-emit-index-url --no-annotate --no-header \
	  --extra mujoco -o requirements/train.txt
	uv pip compile pyproject.toml --universal --python-version 3.11 --no-emit-index-url --no-annotate --no-header \
	  --extra mujoco --extra atari --extra video --extra test -o requirements/test.txt
	uv pip compile pyproject.toml --universal --python-version 3.11 --no-emit-index-url --no-annotate --no-header \
	  --extra all --extra test -o requirements/test-all.txt

clean:
	rm -rf .venv
