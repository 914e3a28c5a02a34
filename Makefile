# Everything people and machines run. `make setup` once, then `make demo` or `make test`.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin

# Which torch: empty takes the package index's own build (CUDA on Linux, several GB).
#   make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu      small CPU build
#   make setup TORCH_INDEX=https://download.pytorch.org/whl/cu130    CUDA 13 build
TORCH_INDEX ?=

.PHONY: setup setup-vllm setup-litellm fmt check test test-slow test-scale test-ui test-alerts test-vllm \
	fuzz bench bench-quick docs release lock demo serve clean

# The stamp names the build, so that another TORCH_INDEX installs another torch.
READY := $(VENV)/.ready-$(notdir $(TORCH_INDEX))

setup: $(READY)

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --upgrade pip
# torch first and alone, so that nothing else decides which build it is.
	$(BIN)/python -m pip install --quiet torch==2.13.0 \
		$(if $(TORCH_INDEX),--force-reinstall --no-deps --index-url $(TORCH_INDEX))
	$(BIN)/python -m pip install --quiet --constraint constraints.txt \
		--build-constraint constraints.txt --editable '.[dev]'
	rm -f $(VENV)/.ready-* && touch $@

# vLLM on the CPU, in an environment of its own.
VLLM       := .venv-vllm
VLLM_READY := $(VLLM)/.ready-$(notdir $(TORCH_INDEX))

setup-vllm: $(VLLM_READY)

$(VLLM_READY): tests/vllm/requirements.txt tests/vllm/install.sh
	tests/vllm/install.sh $(VLLM) $(PYTHON) $(TORCH_INDEX)
	touch $@

# LiteLLM's proxy, which `make bench` compares with, in an environment of its own.
LITELLM       := .venv-litellm
LITELLM_READY := $(LITELLM)/.ready

setup-litellm: $(LITELLM_READY)

$(LITELLM_READY): benchmarks/litellm-requirements.txt
	$(PYTHON) -m venv --clear $(LITELLM)
	$(LITELLM)/bin/python -m pip install --quiet --requirement $<
	touch $@

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

# Two workers per core, at least four (tests/conftest.py): tests wait for more than half of their
# time. One thread each, or numpy's and torch's threads would wait for each other. All tests of a
# file run in one worker, where they share fixtures.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(BIN)/pytest \
	--numprocesses auto --dist loadfile --no-loadscope-reorder

test: setup
	$(PYTEST) -m "not slow and not scale and not browser"

# The Dockerfile step by step, the demo, commands of the documents, every benchmark in small: tests of
# half a minute and more.
test-slow: setup
	$(PYTEST) -m "slow and not scale and not browser"

# Several gateways, also on Ray: on PostgreSQL, which root installs where Debian's is missing.
test-scale: setup
	tests/install-postgres.sh
	$(PYTEST) --numprocesses logical -m scale

# Through the page in Chromium, which root installs where Debian's is missing. What it looked like is
# in .screenshots afterwards.
test-ui: setup
	tests/install-chromium.sh
	$(PYTEST) -m browser tests/ui

# Alerts, by Prometheus' own tool.
test-alerts: setup
	tests/install-promtool.sh
	$(BIN)/pytest -m promtool tests/deploy

# Real vLLM servers behind the gateway: some 10 GB of memory.
test-vllm: setup setup-vllm
	RACER_VLLM_PYTHON=$(VLLM)/bin/python $(BIN)/pytest -m vllm tests/vllm

# New examples for hours: 100,000 for every reader, 1,000 for every endpoint.
fuzz: setup
	$(BIN)/pytest --hypothesis-profile=fuzz --timeout 0 tests/fuzz

# Beside a bare proxy, and beside LiteLLM's where `make setup-litellm` was run. About half an hour,
# on a machine that does nothing else; `bench-quick` takes three minutes and keeps nothing.
bench: setup
	$(BIN)/python benchmarks/compare.py
	$(BIN)/python benchmarks/document.py

bench-quick: setup
	$(BIN)/python benchmarks/compare.py \
		--rounds 2 --seconds 0.8 --requests 500 --starts 1 --out $$(mktemp -d)

demo: setup
	$(BIN)/racer demo

serve: setup
	$(BIN)/racer serve --config deploy/demo/racer.yaml

# A release as a stranger gets it: built, installed in an empty environment by hashes, its demo run.
RELEASE       := .venv-release
RELEASE_READY := $(RELEASE)/.ready

$(RELEASE_READY): deploy/release/requirements.txt
	$(PYTHON) -m venv --clear $(RELEASE)
	$(RELEASE)/bin/python -m pip install --quiet --requirement $<
	touch $@

release: $(RELEASE_READY)
	TORCH_INDEX=$(TORCH_INDEX) deploy/release/check.sh $(RELEASE) $(PYTHON)

# After a change of constraints.txt or of what pyproject.toml asks for.
lock: $(RELEASE_READY)
	deploy/release/lock.sh $(RELEASE)

# The site of docs/, into site/: a link that leads nowhere ends it.
docs: setup
	$(BIN)/python docs/reference/generate.py
	$(BIN)/python -m tests.docs.blocks
	$(BIN)/zensical build --strict

clean:
	rm -rf $(VENV) $(VLLM) $(LITELLM) $(RELEASE) dist site .cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache \
		.screenshots .promtool
