# `make demo` and `make test` do all set-up themselves, in .venv; they need python3.11 or newer, and the tests g++, too.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_READY := $(VENV)/.demo
READY := $(VENV)/.ready

# DeepSpeed compiles a small operator on its first run; it is kept with the environment that it was compiled for.
export TORCH_EXTENSIONS_DIR := $(CURDIR)/$(VENV)/torch_extensions
export PATH := $(CURDIR)/$(BIN):$(PATH)

HTA := $(VENV)/hta
HTA_READY := $(HTA)/.ready

# A server of Azure's store; `node` runs it, and npm brings it.
AZURITE := $(VENV)/azurite
AZURITE_VERSION := 3.35.0
LONGEST_INSTALLATION_S := 300

# Tests run in two processes, one test at a time each: no test may rest on another one of its file.
PYTEST := $(BIN)/python -m pytest -q -n 2 --dist loadgroup

.PHONY: demo test test-all quick lint bench docs clean hta browser azurite screenshots

demo: $(DEMO_READY)
	$(BIN)/perfscope doctor --demo

# Trainings run on other projects' native threads, and machines are busy: what fails is run once more, and says so.
test: lint
	$(PYTEST) --reruns 1 -m "not full"

# And what needs a cluster, a store, a browser or a viewer.
test-all: lint hta browser azurite
	$(PYTEST) --reruns 1

# What a change breaks most often, in a few minutes: everything that starts no training.
quick: lint
	$(PYTEST) -m "not slow and not full"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

hta: $(HTA_READY)

# HTA needs a pandas below 3, so it has an environment of its own, which holds nothing of ours.
$(HTA_READY): tests/viewers/hta-requirements.txt $(READY)
	test -x $(HTA)/bin/python || $(PYTHON) -m venv $(HTA)
	$(HTA)/bin/python -m pip install --no-deps -q -r $<
	touch $@

# The tests of the page open it in a real browser. Playwright's own would have to be downloaded; Debian's does as well.
browser:
	@for program in chromium chromium-browser google-chrome; do command -v $$program > /dev/null && exit 0; done; \
	command -v apt-get > /dev/null || { echo "make: no chromium, no apt-get: the tests of the page will fail" >&2; exit 0; }; \
	apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium fonts-dejavu-core \
	|| echo "make: chromium could not be installed: the tests of the page will fail" >&2

# Where it cannot be installed, the tests of Azure's store are skipped and say so.
azurite: $(READY)
	@test -d $(AZURITE) || { rm -rf $(AZURITE).begun; \
	timeout $(LONGEST_INSTALLATION_S) npm install --prefix $(AZURITE).begun --silent --ignore-scripts --no-audit --no-fund azurite@$(AZURITE_VERSION) \
	&& mv $(AZURITE).begun $(AZURITE); } \
	|| echo "make: Azurite could not be installed: the tests of Azure's store will be skipped" >&2

# The pictures of the page in README.md and docs/.
screenshots: $(READY) browser
	$(BIN)/python -m benchmarks.screenshots

bench: $(READY)
	$(BIN)/python -m benchmarks.startup
	$(BIN)/python -m benchmarks.overhead

# The site lies in .venv/site; it opens without a server.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build -q
	@echo "open $(VENV)/site/index.html"

clean:
	rm -rf $(VENV)

$(DEMO_READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt torch numpy setuptools wheel ninja
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e .
	touch $@

# DeepSpeed's build asks torch for its version, so torch is there first and the build is not isolated.
$(READY): $(DEMO_READY)
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[deepspeed,dev,docs,tensorboard]'
	$(BIN)/python -m compileall -q perfscope analyzers hooks # where PYTHONDONTWRITEBYTECODE is set nobody else does
	touch $@
