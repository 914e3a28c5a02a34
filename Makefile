# Everything people and machines run. `make setup` once, then `make demo` or `make test`.
PYTHON ?= python3.11
VENV   := .venv
BIN    := $(VENV)/bin

# Which torch: empty takes the package index's own build (CUDA on Linux, several GB).
#   make setup TORCH_INDEX=https://download.pytorch.org/whl/cpu      small CPU build
#   make setup TORCH_INDEX=https://download.pytorch.org/whl/cu130    CUDA 13 build
TORCH_INDEX ?=

.PHONY: setup fmt check test test-quick demo serve clean

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

fmt: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

test: setup
	$(BIN)/pytest

test-quick: setup
	$(BIN)/pytest -m "not slow"

demo: setup
	$(BIN)/racer demo

serve: setup
	$(BIN)/racer serve --config deploy/demo/racer.yaml

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .hypothesis .import_linter_cache
