# The two commands to know: `make train` and `make test`. Everything is installed in .venv; pip leaves kdgat.egg-info beside it.
# The first of these that is there and fits. Images have 3.11, which jobs in them need here, too.
PYTHON ?= python3.11 python3.12 python3.13 python3
# Another torch than that of constraints.txt, for GPUs that it has no code for: make install TORCH=2.10.0 (docs/gpu.md).
TORCH ?=
VENV ?= .venv
SHELL := /bin/bash
OUT ?= runs/synthetic
PRESET ?= quick
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SYNTHETIC := data/synthetic
CLUSTER ?= .slurm
LOGGERS := $(VENV)/.loggers

IMAGE ?= kdgat-cpu.sif
BASE ?= .images/base.sif

EXAMPLES ?= 100000
SEED ?= 1

# Container images like to set it. Every process that tests start would compile all that it imports from source.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help install named-torch loggers train test test-cuda test-processes test-cluster test-flows test-image test-services test-all lint audit fuzz docs cluster-up cluster-down image deploy deployment own-experiment own-dataset undeploy deployed clean

help:  ## Say what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

install: $(STAMP)  ## Create .venv with the pinned dependencies and this package

# A torch that is named is asked for also where another one is installed. What a first `kdgat detect` would compile is
# compiled here; without it the environment is as good.
$(STAMP): pyproject.toml constraints.txt $(if $(TORCH),named-torch)
	@tried=; for python in $(PYTHON); do \
		if ! command -v $$python >/dev/null; then said="is not in PATH"; \
		elif said=$$($$python install.py --fits 2>&1); then exec $$python install.py --venv $(VENV) $(addprefix --torch=,$(TORCH)) --editable '.[dev]'; fi; \
		tried="$$tried; $$python $${said%%$$'\n'*}"; \
	done; \
	echo "error: kdgat needs Python 3.11, 3.12 or 3.13 ($${tried#; }): install one (Debian, Ubuntu:" \
		"apt install python3 python3-venv), or name it: make install PYTHON=/path/of/python3.12" >&2; exit 1
	-@$(BIN)/python -m kdgat.cli.compilation
	@echo "Ready. In this shell: . $(BIN)/activate" >&2
	@touch $@

loggers: $(LOGGERS)  ## Install Weights & Biases and MLflow, which only the tests of training.loggers need

# Where they cannot be had those tests say so. MLflow asks for an importlib_metadata below that of constraints.txt and of
# the images, and works with it: hence --no-deps.
$(LOGGERS): $(STAMP)
	-$(BIN)/python -m pip install --quiet --constraint constraints.txt 'wandb==0.29.0' sqlparse opentelemetry-sdk \
		opentelemetry-proto databricks-sdk
	-$(BIN)/python -m pip install --quiet --no-deps mlflow-skinny==3.17.2
	@touch $@

# Less than half of the preset's windows: with all of them seven minutes, and attacks of unknown kinds are found more often.
PART := -O injection.variants=300 -O sampling.graphs_per_epoch=3584 -O curriculum.graphs_per_epoch=3584

train: install  ## Synthetic traffic, the whole flow, the report and the scores (about four minutes on two cores)
	test -d $(SYNTHETIC) || $(BIN)/kdgat data synth --out data --dataset synthetic
	$(BIN)/kdgat train can --dataset synthetic --data-root data --out $(OUT) --preset $(PRESET) $(PART)

# One thread each; --dist=loadfile keeps the tests of a module, which share what it sets up, together.
# Not loadgroup: with pytest 9.2 pytest-xdist 3.8 does not heed the groups.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest
# The longest modules come first, as tests/conftest.py says, instead of those with the most tests. Three workers: a third of
# the time of two goes into waiting for jobs, signals and servers.
SERVICES := $(PYTEST) --numprocesses=3 --dist=loadfile --no-loadscope-reorder --durations=25

# Torch learns of the GPU before it is imported: hence a pytest of its own.
ON_CUDA := $(PYTEST) -p tests.pretended_cuda.plugin --numprocesses=2 --dist=worksteal \
	-m "not processes and not slurm and not prefect and not image and not nightly" \
	$(addprefix tests/,pretended_cuda training/test_fit.py training/test_resume.py training/batch_size/test_partition.py)

test: install  ## The tests that need nothing but their own process (five minutes with the installation)
	$(PYTEST) --numprocesses=2 --dist=worksteal \
		-m "not processes and not slurm and not prefect and not image and not nightly" $(TESTS)
	$(if $(TESTS),,$(ON_CUDA))

test-cuda: install  ## Every stage of all families, and what trains, on a GPU that is pretended (part of make test)
	$(ON_CUDA)

test-processes: install $(LOGGERS)  ## The tests that start Python processes: killed, signalled, side by side, in several ranks
	$(SERVICES) -m "processes and not slurm and not prefect and not image and not nightly" $(TESTS)

test-cluster: install  ## The tests with a real Slurm
	$(SERVICES) -m "slurm and not image and not nightly" $(TESTS)

test-flows: install  ## The tests with a real Prefect server
	$(SERVICES) -m "prefect and not slurm and not image and not nightly" $(TESTS)

test-image: install  ## The tests with a real Apptainer
	$(SERVICES) -m "image and not nightly" $(TESTS)

test-services: install $(LOGGERS)  ## The four above side by side, as continuous integration runs them
	$(SERVICES) -m "(processes or slurm or prefect or image) and not nightly" $(TESTS)

test-all: install $(LOGGERS)  ## All tests, the long ones of the night included
	$(SERVICES) $(TESTS)
	$(if $(TESTS),,$(ON_CUDA))

lint: install  ## Style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

audit: install  ## Versions against constraints.txt, licences, known faults; vulnerabilities where the index answers
	@$(BIN)/python -m tests.audit

fuzz: install  ## Damaged input for everything that reads: EXAMPLES=100000 SEED=1; says how many, and what failed
	$(BIN)/python -m tests.fuzz --examples $(EXAMPLES) --seed $(SEED)

# Material's advertisement for its successor is no news to who makes the site.
docs: install  ## The documentation as a site, in site/index.html: needs no network to read; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "$(CURDIR)/site/index.html"

cluster-up: install  ## Boot a private Slurm of three nodes in .slurm: eval "$(make -s cluster-up)"
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
	@echo "A dataset of your own: make deployment DATASET=NAME; a model of your own: make deployment FILE=net.py; and again make deploy"

PREFECT_FILE := deployments/prefect.yaml

# Of an experiment; the recipe fills in what stands between two @. Its nights sleep where no data come from outside.
define EXPERIMENT

  - <<: *exclusive
    name: @NAME@
    entrypoint: flows/experiment.py:experiment
    description: Train and evaluate the experiment of @SOURCE@.
    tags: [experiment, training, @NAME@]
    parameters:
      preset: quick
      out: "{{ installation.outputs }}/experiment/@NAME@"
      site: "{{ installation.site }}"
      config: {source: "@SOURCE@"@ROOT@}

  - <<: *exclusive
    name: @NAME@
    entrypoint: flows/night/experiment.py:nightly_experiment
    description: >-
      Every night, train the experiment of @SOURCE@ again if its data or code have changed, and put the new model into service if it is not worse.
    tags: [experiment, nightly, @NAME@]
    schedules:
      - {<<: *every_night, active: @AWAKE@}
    parameters:
      preset: quick
      registry: "{{ installation.registry }}"
      out: "{{ installation.outputs }}/nightly-experiment/@NAME@"
      site: "{{ installation.site }}"
      config: {source: "@SOURCE@"@ROOT@}
endef
export EXPERIMENT

deployment: $(if $(FILE),own-experiment,own-dataset)  ## Add deployments to deployments/prefect.yaml: DATASET=my_cars, or FILE=net.py [ROOT=FOLDER]; then make deploy

own-experiment:
	@source=$$(realpath -e -- "$(FILE)") && root=$(if $(ROOT),$$(realpath -e -- "$(ROOT)")) || exit 1; \
		name=$$(basename "$$source" .py); name=$${name//_/-}; \
		[[ "$$source" == *.py && "$$name" =~ ^[A-Za-z0-9-]+$$ && "$$source$$root" != *[\"\\]* ]] || \
			{ echo "error: name a Python file by letters, digits and _: make deployment FILE=net.py" >&2; exit 1; }; \
		! grep -q "^    name: $$name\$$" $(PREFECT_FILE) || \
			{ echo "error: $(PREFECT_FILE) has deployments called $$name: change them, or give the file another name" >&2; exit 1; }; \
		block="$${EXPERIMENT//@NAME@/"$$name"}"; block="$${block//@SOURCE@/"$$source"}"; \
		block="$${block//@AWAKE@/$$([[ -n "$$root" ]] && echo true || echo false)}"; \
		echo "$${block//@ROOT@/"$${root:+, root: \"$$root\"}"}" >> $(PREFECT_FILE)

# As blocks of `synthetic`, whose paragraphs the file has; a night of it is awake at once.
own-dataset:
	@[[ "$(DATASET)" =~ ^[A-Za-z0-9_-]+$$ ]] || { echo "error: name its folder: make deployment DATASET=my_cars, or a file: make deployment FILE=net.py" >&2; exit 1; }
	@! grep -q 'dataset: $(DATASET),' $(PREFECT_FILE) || { echo "error: $(PREFECT_FILE) has $(DATASET)" >&2; exit 1; }
	@blocks=$$(awk -v RS= '/\n    name: synthetic\n/ { sub(/^(deployments:\n)?( *#[^\n]*\n)*/, ""); sub(/, active: "[^"]*"/, ""); \
		sub(/description: .*\n    tags/, "description: The dataset synthetic.\n    tags"); gsub("synthetic", "$(DATASET)"); \
		sub("name: $(DATASET)", "name: $(subst _,-,$(DATASET))"); \
		print "\n" $$0 }' $(PREFECT_FILE)) && echo "$$blocks" >> $(PREFECT_FILE)

undeploy: install  ## End exactly what deploy started; database, registry and outputs stay
	@$(BIN)/python -m flows.deployment down

deployed: install  ## Say what of it runs
	@$(BIN)/python -m flows.deployment status || [ $$? -eq 3 ]  # nothing runs: it has said so

clean:  ## Remove caches and build leftovers; runs and data stay
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
