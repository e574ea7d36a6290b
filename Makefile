# The commands that the README names. Everything they install goes into .venv.

PYTHON ?= python3
# Another environment, for another Python or other versions: make test PYTHON=python3.13 VENV=.venv-3.13
VENV := .venv
# A file of versions that are installed: make test VENV=.venv-oldest CONSTRAINTS=tests/constraints-oldest.txt
CONSTRAINTS :=
BIN := $(VENV)/bin
METADATA := setup.cfg pyproject.toml

# Arguments for the demo, the tests and the benchmark of kernels: make demo ARGS="--epochs 5"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help demo charlm convnet docs test test-all test-gpu fuzz lint format bench bench-gpu driver functions clean force same-python

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/examples.stamp ## train a network on handwritten digits
	$(BIN)/python examples/digits.py $(ARGS)

charlm: $(VENV)/examples.stamp ## train a network to write text, one character after the other
	$(BIN)/python examples/charlm.py $(ARGS)

convnet: $(VENV)/examples.stamp ## train a convolutional network on handwritten digits, or on your images
	$(BIN)/python examples/convnet.py $(ARGS)

# The tests' matrices are small: on a busy machine, BLAS's threads would wait for each other longer than they work.
# As many processes run them as there are processors; make test ARGS=-n0 runs them in one.
PYTEST := $(BIN)/python -m pytest -n auto --dist worksteal

# They start some two hundred processes, which would all compile op-tree's Python anew where bytecode is not written.
unexport PYTHONDONTWRITEBYTECODE

test test-all: export OPENBLAS_NUM_THREADS ?= 1
test: $(VENV)/dev.stamp ## run the tests, with a sample of the largest matrices
	$(PYTEST) $(ARGS)

test-all: $(VENV)/dev.stamp ## run every test
	$(PYTEST) --all $(ARGS)

test-gpu: driver $(VENV)/dev.stamp $(VENV)/gpu.stamp ## run the tests of what runs on any backend on a GPU (large downloads)
	$(BIN)/python -m pytest --home gpu -rs $(ARGS)

fuzz: export OPENBLAS_NUM_THREADS ?= 1
fuzz: $(VENV)/dev.stamp ## run random programs against NumPy: make fuzz ARGS="--seed 1 --seconds 600"
	PYTHONPATH=tests $(BIN)/python tests/fuzz.py $(ARGS)

# Real CuPy on simulated devices: what it refuses, it refuses here. Kernels are compiled one by one, which takes its time.
test-rig: export OPENBLAS_NUM_THREADS ?= 1
test-rig: $(VENV)/rig.stamp ## run the tests of a GPU on simulated devices, by real CuPy (20 minutes of a processor)
	$(PYTEST) --home gpu --rig $(ARGS)

gpu-report: driver $(VENV)/dev.stamp $(VENV)/gpu.stamp ## run what says most of a GPU, and write it down to be sent in
	$(BIN)/python tools/gpu_report.py $(ARGS)

lint: $(VENV)/dev.stamp ## check style and types
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy
	$(BIN)/python tools/lint_c.py

format: $(VENV)/dev.stamp ## put the source into the project's style
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

bench: $(VENV)/bench.stamp ## measure what trees cost beyond their NumPy work, and kernels beside other libraries
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/training_step.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/idioms.py --save benchmarks/results
	$(BIN)/python benchmarks/convolutions.py
	$(BIN)/python benchmarks/networks.py
	$(BIN)/python benchmarks/cpu.py $(ARGS)

bench-gpu: driver $(VENV)/bench-gpu.stamp ## measure kernels on a GPU beside other libraries (large downloads)
	$(BIN)/python benchmarks/gpu.py $(ARGS)
	$(if $(ARGS),,$(BIN)/python benchmarks/convolutions.py --device gpu)
	$(if $(ARGS),,$(BIN)/python benchmarks/networks.py --device gpu)

# Looked for before anything large is downloaded.
driver:
	@$(PYTHON) -c 'import ctypes; from os.path import exists; wsl = "/usr/lib/wsl/lib/libcuda.so.1"; \
		ctypes.CDLL(wsl if exists(wsl) else "libcuda.so.1")' 2> /dev/null || { \
		echo "make $(MAKECMDGOALS) needs an NVIDIA GPU, and this machine has no driver for one: libcuda.so.1 is not found"; \
		exit 1; }

docs: $(VENV)/docs.stamp ## build the documentation site in output/site
	$(BIN)/python docs/build_site.py

functions: $(VENV)/dev.stamp ## write docs/functions.md and backends/functions.pyi from the definitions
	$(BIN)/python docs/generate.py
	$(BIN)/python tools/stubs.py

clean: ## delete .venv and what runs have left behind
	rm -rf $(VENV) .venv-* output build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp of an environment is newer than the metadata that it was installed from.

# Python compiles what is imported, where pip would compile all that there is (17 s).
$(VENV)/%.stamp: $(VENV)/made.stamp $(VENV)/constraints.txt $(METADATA)
	@echo "Installing into $(VENV) (once; a minute or two)"
	$(BIN)/python -m pip install --quiet --no-compile --constraint $(VENV)/constraints.txt --editable '.[$*]'
	@touch $@

# PyCUDA for simulated devices alone: built once (two to four minutes), where no program finds it.
$(VENV)/rig.stamp: $(VENV)/dev.stamp tests/harness/rig/build_pycuda.py
	@echo "Building PyCUDA for simulated devices into $(VENV)/pycuda (once; a few minutes)"
	$(BIN)/python tests/harness/rig/build_pycuda.py $(VENV)/pycuda
	@touch $@

# Written where it changes: it is newer than a stamp if another file of versions is named.
$(VENV)/constraints.txt: $(VENV)/made.stamp $(CONSTRAINTS) force
	@cat /dev/null $(CONSTRAINTS) | cmp -s - $@ || cat /dev/null $(CONSTRAINTS) > $@

# An environment has one Python: whoever names another one is told, rather than given the first.
ifeq ($(origin PYTHON),command line)
$(VENV)/made.stamp: | same-python
endif
force:
same-python:
	@test ! -e $(VENV)/made.stamp || test "$$($(PYTHON) --version)" = "$$($(BIN)/python --version)" || { \
		echo "$(VENV) has $$($(BIN)/python --version), and $(PYTHON) is another:"; \
		echo "make $(MAKECMDGOALS) PYTHON=$(PYTHON) VENV=.venv-$(notdir $(PYTHON))"; exit 1; }

$(VENV)/made.stamp:
	@command -v $(PYTHON) > /dev/null || { echo "$(PYTHON) is not installed; op-tree needs Python 3.11 or newer"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "op-tree needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1);"; \
		echo "name a newer one: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { echo "$(PYTHON) cannot make $(VENV); on Debian and Ubuntu, install python3-venv"; \
		rm -rf $(VENV); exit 1; }
	@touch $@
