# Everything runs in an environment of its own, made on first use:
#   make demo PYTHON=python3.12 VENV=/elsewhere

PYTHON ?= python3
VENV ?= .venv
CONSTRAINTS ?= constraints.txt
BIN = $(VENV)/bin
DEMO_CONFIG = configs/smollm2-135m-cpu.yaml

.PHONY: demo test test-long check links clean

demo: $(VENV)/.installed  ## fetch a small model and let it answer a few prompts
	$(BIN)/noria fetch smollm2-135m
	$(BIN)/noria plan $(DEMO_CONFIG)
	$(BIN)/noria generate $(DEMO_CONFIG) --prompts examples/prompts.txt --chat

test: $(VENV)/.installed-test  ## what runs on any machine in a quarter of an hour
	$(BIN)/noria fetch smollm2-135m
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m "not long and not neuron"

test-long: $(VENV)/.installed-test  ## long fuzz; `make test` compares the real model already
	$(BIN)/python -m pytest -m long

check: $(VENV)/.installed-dev links  ## style and types
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/mypy examples

links:  # static tools cannot follow setuptools' import hook: give them a real `noria` folder (git-ignored)
	mkdir -p build/links/noria
	for d in bucketing configs kernels runtime; do ln -sfn ../../../$$d build/links/noria/$$d; done

clean:  ## all that make and the tools leave, the environment excepted
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find bucketing configs examples kernels runtime tests -name __pycache__ -prune -exec rm -rf {} +

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) | $(VENV)/.made
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e .
	touch $@

$(VENV)/.installed-%: pyproject.toml $(CONSTRAINTS) | $(VENV)/.made
	$(BIN)/python -m pip install --quiet -c $(CONSTRAINTS) -e '.[$*]'
	touch $(VENV)/.installed $@

$(VENV)/.made:
	$(PYTHON) -m venv $(VENV)
	touch $@
