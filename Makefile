# Every target says what it does and can be repeated. `make help` lists them.
PYTHON ?= python3.11
VENV ?= .venv
BIN := $(VENV)/bin
FAST := $(BIN)/python -m pytest -n auto --dist worksteal tests/architecture tests/unit tests/ui
READY := $(VENV)/.ready
SOURCES := src tests bench tools

.PHONY: help venv demo test test-fast check format bench clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(READY) ## build the virtual environment with the real engine for CPUs

$(READY): pyproject.toml
	@echo "== building $(VENV): vLLM for the CPU, the app and its tools (about 2 minutes)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --editable '.[cpu,test,lint]' || { \
	  echo "The installation failed. If pip found no CPU build of torch: name PyTorch's CPU wheel index"; \
	  echo "(see PyTorch's page 'Get Started', package pip, platform CPU) and try again:"; \
	  echo "  PIP_EXTRA_INDEX_URL=<that index> make $(MAKECMDGOALS)"; exit 1; }
	@touch $@

demo: $(READY) ## open the app with a real engine: on cpu-tiny, later on the last preset
	@$(BIN)/agentserve-tui --first-preset cpu-tiny

test: $(READY) ## run every test, real engines included
	@echo "== all tests: fast ones first, then the real engine"
	@$(FAST)
	@$(BIN)/python -m pytest tests/e2e

test-fast: $(READY) ## run the tests that need no engine
	@$(FAST)

check: $(READY) ## ruff, strict mypy, import contracts
	@echo "== ruff, mypy, import contracts"
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check $(SOURCES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

format: $(READY) ## format and sort what ruff can
	@$(BIN)/ruff check --fix --quiet $(SOURCES) || true
	@$(BIN)/ruff format $(SOURCES)

bench: $(READY) ## measure the cost of the screen and of a switch, as ratios
	@$(BIN)/python -m bench

clean: ## remove the environment and all caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
