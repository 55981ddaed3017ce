# Two commands on a bare machine with Python 3.11+: `make train` and `make test`.

PYTHON ?= $(firstword $(foreach p,python3.13 python3.12 python3.11 python3 python,$(shell command -v $(p) 2>/dev/null)))
BIN := .venv/bin
ENV ?= HalfCheetah-v5
STEPS ?= 300000
ALGO ?= p3o
SEED ?= 0

.PHONY: help train test test-all lock clean

help:
	@echo "make train [ENV=HalfCheetah-v5] [STEPS=300000] [ALGO=p3o] [SEED=0]   train with a live display"
	@echo "make test        format, lint, types and tests"
	@echo "make test-all    the same with every extra and the slow tests"
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
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed, $(PYTHON) is older: make PYTHON=..."; exit 2; }
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

lock:
	uv pip compile pyproject.toml --universal --python-version 3.11 --no-emit-index-url --no-annotate --no-header \
	  --extra mujoco -o requirements/train.txt
	uv pip compile pyproject.toml --universal --python-version 3.11 --no-emit-index-url --no-annotate --no-header \
	  --extra mujoco --extra video --extra test -o requirements/test.txt
	uv pip compile pyproject.toml --universal --python-version 3.11 --no-emit-index-url --no-annotate --no-header \
	  --extra all --extra test -o requirements/test-all.txt

clean:
	rm -rf .venv
