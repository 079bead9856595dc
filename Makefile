# Each target makes what it needs in .venv, from a machine with Python >= 3.11, gcc and a package index.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-slow lint format docs clean

demo: .venv/.demo
	$(BIN)/bertsmith demo --out runs/demo $(DEMO)

test: .venv/.dev
	$(BIN)/python -m pytest -q -n 2 $(TEST)

test-slow: .venv/.dev
	$(BIN)/python -m pytest -q -m slow $(TEST)

lint: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.dev
	$(BIN)/python docs/make_cli.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/.demo: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[metrics]'
	touch $@

.venv/.dev: .venv/bin/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[dev]'
	touch $@ .venv/.demo

clean:
	rm -rf .venv runs .pytest_cache .ruff_cache .mypy_cache
