# `make demo` and `make test` do all set-up themselves, in .venv; they need python3.11 or newer, make and g++.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# DeepSpeed compiles a small operator on its first run; it is kept with the environment that it was compiled for.
export TORCH_EXTENSIONS_DIR := $(CURDIR)/$(VENV)/torch_extensions
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: demo test lint bench clean

demo: $(READY)
	$(BIN)/perfscope demo

test: lint
	$(BIN)/python -m pytest -q

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY)
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.overhead

clean:
	rm -rf $(VENV)

# DeepSpeed's build asks torch for its version, so torch is there first and the build is not isolated.
$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch numpy setuptools wheel ninja
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[deepspeed,dev]'
	$(BIN)/python -m compileall -q perfscope analyzers hooks # where PYTHONDONTWRITEBYTECODE is set nobody else does
	touch $@
