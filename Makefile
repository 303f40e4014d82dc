PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test lint benchmark clean

demo: $(READY)  ## three networks on the digits, the curves between two of them, figures in thalweg-demo/
	$(BIN)/thalweg demo

test: $(READY) lint  ## everything CI checks
	$(BIN)/pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

benchmark: $(READY)  ## the cost of a curve step on this machine
	$(BIN)/python benchmarks/steps.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis thalweg-demo
