# make demo: preprocess and train on the shipped flights data · make test: all tests · make check: what CI runs
PYTHON ?= python3
VENV ?= .venv
DEMO ?= demo-project
# files of tests that run side by side; a test uses about one core
TEST_PROCESSES ?= 2
BIN := $(abspath $(VENV))/bin
INSTALLED := $(VENV)/.installed
# A file's tests stay together, since they share what is slow to start: a Ray instance, a Slurm, hosts.
SIDE_BY_SIDE := -n $(TEST_PROCESSES) --dist loadfile

.PHONY: install demo test check format docs

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "error: $(PYTHON) is older than 3.10; name another one: make PYTHON=python3.12" >&2; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV) || \
		{ echo "error: $(PYTHON) cannot make virtual environments; install its venv package (python3-venv)" >&2; exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch -e '.[dev]'
	@touch $@

demo: $(INSTALLED)
	@test -e $(DEMO)/configs/train.yaml || $(BIN)/sequifier-ray make $(DEMO) --demo
	@cd $(DEMO) && $(BIN)/sequifier-ray preprocess && $(BIN)/sequifier-ray train
	@echo && echo "the model, ready to use: $(DEMO)/models/demo-best and $(DEMO)/models/demo-last"

test: $(INSTALLED)
	$(BIN)/python -m pytest $(SIDE_BY_SIDE)

check: $(INSTALLED)
	$(BIN)/ruff format --check sequifier_ray tests
	$(BIN)/ruff check sequifier_ray tests
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --durations=40

format: $(INSTALLED)
	$(BIN)/ruff check --fix sequifier_ray tests
	$(BIN)/ruff format sequifier_ray tests

docs: $(INSTALLED)
	$(BIN)/python -m sequifier_ray.config.document > docs/configuration.md.new
	mv docs/configuration.md.new docs/configuration.md
