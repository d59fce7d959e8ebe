# make setup   create .venv and install everything that training, evaluation and tests need
# make demo    set up, then run the whole chain: data, training, HumanEval, export, engine
# make test    set up, then run the tests
# make lint    set up, then ruff and mypy
# make clean   remove .venv and what demo wrote
#
# PYTHON=python3.12   another interpreter (3.11 or newer)
# GPU=1               PyPI's current torch (on Linux a CUDA build) instead of the CPU constraints

PYTHON ?= python3
VENV := .venv
comma := ,
INSTALLED := $(VENV)/installed$(if $(GPU),-gpu)
EXTRAS := train,eval,dev$(if $(GPU),$(comma)cuda)
CONSTRAINTS := $(if $(GPU),,--constraint constraints-cpu.txt)

.PHONY: setup demo test lint clean

setup: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints-cpu.txt
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(CONSTRAINTS) --editable '.[$(EXTRAS)]'
	touch $@

demo: setup
	$(VENV)/bin/python scripts/demo.py

test: setup
	$(VENV)/bin/python -m pytest

lint: setup
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy

clean:
	rm -rf $(VENV) runs/demo data/demo
