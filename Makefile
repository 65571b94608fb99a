PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help setup demo test coverage check static format proto docs pins package bench flower-versions flower-oldest nvflare clean

help:  ## Show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 17

setup: $(VENV)/.dev  ## Create .venv with everything needed for development

demo: $(VENV)/.run  ## Run the paper's comparison on Simulation Setup 1: table, a page
	@echo "A minute or two on two cores; interrupted, the same command goes on."
	$(BIN)/fedpace run simulation-1 --schemes all --seeds 3 --out demo
	$(BIN)/fedpace run simulation-1 --schemes pace --seeds 3 --set training.mode=asynchronous --out demo
	$(BIN)/fedpace report demo

# A worker keeps to neighbours, which share a lab, a browser or a cluster, until the other is done.
PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal
# sampling/ and profile.py must be covered wholly by these, their own tests. Measuring makes tests
# half as long again, so the others go without; `make coverage` measures all.
COVERING := src/fedpace/sampling src/fedpace/profile.py tests/sampling tests/test_profile.py

test: $(VENV)/.dev  ## Run all tests, doctests and README blocks; sampling/ must be covered wholly
	$(PYTEST) --cov --cov-report= $(COVERING)
	$(BIN)/python -m coverage report --include='src/fedpace/sampling/*,src/fedpace/profile.py' --fail-under=100
	$(PYTEST) $(COVERING:%=--ignore=%)

coverage: $(VENV)/.dev  ## Run all tests, and print the lines of the package that none of them runs
	$(PYTEST) --cov --cov-report=
	$(BIN)/python -m coverage report

static: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: static docs test  ## Format, lint, types, import contract, site, tests

format: $(VENV)/.dev  ## Format and sort imports
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: $(VENV)/.dev  ## Make the Python code of devices.proto anew
	cd src && ../$(BIN)/python -m grpc_tools.protoc -I . --python_out=. --pyi_out=. fedpace/devices/devices.proto

# Without its advertisement for another program.
docs: $(VENV)/.docs  ## Build the site into site/; a broken link or an unknown name is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

pins:  ## Make requirements/*.txt anew from *.in, with hashes; needs uv
	cd requirements && for list in run dev docs bench release; do \
	  uv pip compile --quiet --generate-hashes --no-header --no-annotate --no-emit-index-url \
	    --no-strip-extras $$list.in -o $$list.txt || exit 1; \
	done

package: $(VENV)/.docs  ## Build wheel and sdist into dist/, and try each in an empty environment
	rm -rf dist
	$(BIN)/python -m build --no-isolation --quiet
	$(BIN)/twine check --strict dist/*
	sh tests/package.sh

bench: $(VENV)/.bench  ## Run the benchmarks; results with ratios in benchmarks/README.md
	$(BIN)/python benchmarks/solvers.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/import_time.py
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/rounds.py
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/rounds_scaling.py
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/million_clients.py
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/asynchronous.py --studies simulation-1
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/checkpoint_cost.py --model logistic
	OPENBLAS_NUM_THREADS=1 $(BIN)/python benchmarks/devices.py

# The oldest Flower that we support, and the newest there is. Each environment is small: no PyTorch,
# no SuperLink. Their other packages are whatever pip finds, which may warn of each other.
OLDEST_FLOWER := flwr==1.22.0
FLOWERS ?= $(OLDEST_FLOWER) flwr
FLOWER_TESTS := $(addprefix tests/flower/test_, asynchronous.py attacks.py backend.py equivalence.py evaluation.py \
  messages.py nodes.py own_loop.py own_strategies.py resume.py strategy.py wrapped.py)

flower-versions:  ## Run Flower's tests with its oldest and its newest version, in .versions
	@for flower in $(FLOWERS); do \
	  folder=.versions/$$flower; \
	  $(PYTHON) -m venv $$folder && \
	  $$folder/bin/python -m pip install --quiet --editable '.[flower]' $$flower pytest hypothesis && \
	  $$folder/bin/python -c 'import flwr; print("flwr", flwr.__version__)' && \
	  $$folder/bin/python -m pytest -q -p no:cacheprovider -W ignore::DeprecationWarning $(FLOWER_TESTS) || exit 1; \
	done

flower-oldest:  ## Run Flower's tests with the oldest version that is supported
	$(MAKE) flower-versions FLOWERS=$(OLDEST_FLOWER)

nvflare:  ## Run NVFlare's tests in an environment of their own, in .versions
	$(PYTHON) -m venv .versions/nvflare
	.versions/nvflare/bin/python -m pip install --quiet --editable '.[nvflare]' pytest hypothesis
	.versions/nvflare/bin/python -m pytest -q -p no:cacheprovider tests/nvflare

clean:  ## Remove the virtual environment and everything generated
	rm -rf $(VENV) .versions demo dist site .coverage .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

# The lists are complete and pinned, so pip resolves nothing: a newer version of a dependency of a
# dependency cannot come in between.
$(VENV)/.run: requirements/run.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "fedpace needs Python 3.11 or newer; try: make PYTHON=python3.11 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --no-deps -r requirements/run.txt
	$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.dev: requirements/dev.txt requirements/torch.txt $(VENV)/.run
	$(PIP) --no-deps -r requirements/dev.txt
	$(PIP) -r requirements/torch.txt
	@touch $@

$(VENV)/.docs: requirements/docs.txt $(VENV)/.run
	$(PIP) --no-deps -r requirements/docs.txt
	@touch $@

$(VENV)/.bench: requirements/bench.txt $(VENV)/.run
	$(PIP) --no-deps -r requirements/bench.txt
	@touch $@
