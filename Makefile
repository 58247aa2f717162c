# The two commands to know: `make train` and `make test`. Everything happens in .venv; nothing is installed elsewhere.
PYTHON ?= python3.11
VENV ?= .venv
OUT ?= runs/synthetic
PRESET ?= quick
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SYNTHETIC := data/synthetic
CLUSTER ?= .slurm

IMAGE ?= kdgat-cpu.sif
BASE ?= .images/base.sif

# Container images like to set it. Every process that tests start would compile all that it imports from source.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install train test test-cluster test-flows test-image test-services test-all lint cluster-up cluster-down image deploy undeploy deployed clean

help:  ## Say what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

install: $(STAMP)  ## Create .venv with the pinned dependencies and this package

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

train: install  ## Synthetic traffic, the whole flow, the report and the scores (under ten minutes on two cores)
	test -d $(SYNTHETIC) || $(BIN)/kdgat data synth --out data --dataset synthetic
	$(BIN)/kdgat train can --dataset synthetic --data-root data --out $(OUT) --preset $(PRESET)

# One thread each; --dist=loadfile keeps the tests of a module, which share what it sets up, together.
# Not loadgroup: with pytest 9.2 pytest-xdist 3.8 does not heed the groups.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# The longest modules come first, as tests/conftest.py says, instead of those with the most tests. Two workers: a third
# makes two cores no faster.
SERVICES := $(PYTEST) --numprocesses=2 --dist=loadfile --no-loadscope-reorder --durations=25

test: install  ## The tests that need nothing: no Slurm, no Prefect server, no Apptainer (five minutes)
	$(PYTEST) --numprocesses=2 --dist=worksteal -m "not slurm and not prefect and not image and not nightly" $(TESTS)

test-cluster: install  ## The tests with a real Slurm
	$(SERVICES) -m "slurm and not image and not nightly" $(TESTS)

test-flows: install  ## The tests with a real Prefect server
	$(SERVICES) -m "prefect and not slurm and not image and not nightly" $(TESTS)

test-image: install  ## The tests with a real Apptainer
	$(SERVICES) -m "image and not nightly" $(TESTS)

test-services: install  ## The three above side by side, as continuous integration runs them
	$(SERVICES) -m "(slurm or prefect or image) and not nightly" $(TESTS)

test-all: install  ## All tests, the long ones of the night included
	$(SERVICES) $(TESTS)

lint: install  ## Style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

cluster-up: install  ## Boot a private Slurm of three nodes in .slurm: eval "$$(make -s cluster-up)"
	@bash tests/slurm/install.sh
	@$(BIN)/python -m tests.slurm up $(CLUSTER)

cluster-down: install  ## End what cluster-up started
	@$(BIN)/python -m tests.slurm down $(CLUSTER)

image: install $(BASE)  ## Get Apptainer (Debian, root), make a base, build and test the CPU image: IMAGE=kdgat-cpu.sif
	bash containers/install-apptainer.sh
	$(BIN)/kdgat image build cpu --base $(BASE) --out $(IMAGE)

$(BASE):
	bash containers/install-apptainer.sh
	mkdir -p $(dir $(BASE))
	bash containers/make-base.sh $(BASE)

deploy: install  ## Prefect server on the loopback, work pool, deployments, worker: all in KDGAT_HOME
	@$(BIN)/python -m flows.deployment up

undeploy: install  ## End exactly what deploy started; database, registry and outputs stay
	@$(BIN)/python -m flows.deployment down

deployed: install  ## Say what of it runs
	@$(BIN)/python -m flows.deployment status

clean:  ## Remove caches and build leftovers; runs and data stay
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
