# Every target sets up .venv by itself, and again only when pyproject.toml or constraints.txt changed.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
PROTOS := $(wildcard proto/leco/v1/*.proto)

.DEFAULT_GOAL := help
.PHONY: help dist demo unit test e2e lint k8s-lint proto proto-check proto-accept bench chaos constraints docs clean

help: ## Show the targets
	@grep -E '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(READY): pyproject.toml constraints.txt
	@echo "Setting up .venv (a minute or two, the first time) ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "leco needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Try: make PYTHON=/path/to/python3.11")'
	@$(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

demo: $(READY) ## Train LECO until it solves MultiRoom-N6, and play with what it learned
	@$(BIN)/leco demo

unit: $(READY) ## Run the tests that start no server, in a minute
	@$(BIN)/pytest --numprocesses 2 --dist loadfile tests/unit

test: $(READY) ## Run every test
	@$(BIN)/pytest --numprocesses 2 --dist loadfile

e2e: $(READY) ## docker compose up, for real: needs a Docker engine and 10 to 25 minutes
	@$(BIN)/pytest tests/e2e -m e2e

lint: $(READY) proto-check ## ruff, mypy --strict, import rules, proto checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python deploy/observability/derive.py --check
	$(BIN)/python docs/derive_settings.py --check
	$(BIN)/python docs/derive_hardware.py --check

.venv-checkov: # its own, because it pins a hundred packages
	@$(PYTHON) -m venv $@
	@$@/bin/pip install --quiet --disable-pip-version-check checkov==3.3.30

k8s-lint: .venv-checkov ## Security lint of the Kubernetes manifests; needs kubectl
	@mkdir -p .k8s-lint
	@for overlay in minigrid dmlab example copy; do kubectl kustomize deploy/k8s/$$overlay > .k8s-lint/$$overlay.yaml || exit 1; done
	@.venv-checkov/bin/checkov --config-file deploy/k8s/checkov.yaml --directory .k8s-lint

proto: $(READY) ## Generate leco/v1 from proto/
	$(BIN)/python proto/generate.py

proto-check: $(READY) ## buf lint, no breaking change, generated code is current
	$(BIN)/buf lint
	$(BIN)/buf breaking --against proto/accepted.binpb
	$(BIN)/python proto/generate.py --check

proto-accept: $(READY) ## Accept the present contracts as the ones that must not break
	$(BIN)/buf lint
	$(BIN)/buf build --as-file-descriptor-set --exclude-source-info --output proto/accepted.binpb

bench: $(READY) ## Run the benchmarks; tables go to benchmarks/results
	$(BIN)/python benchmarks/hashcount.py
	$(BIN)/python benchmarks/tracing.py
	$(BIN)/python -W ignore benchmarks/recurrent.py
	$(BIN)/python -W ignore benchmarks/distinct.py
	$(BIN)/python -W ignore benchmarks/update.py
	$(BIN)/python -W ignore benchmarks/bilevel.py
	$(BIN)/python -W ignore benchmarks/environments.py
	$(BIN)/python -W ignore benchmarks/payload.py
	$(BIN)/python -W ignore benchmarks/stream.py
	PYTHONPATH=tests $(BIN)/python -W ignore benchmarks/fleet.py
	$(BIN)/python -W ignore benchmarks/end_to_end.py
	$(BIN)/python -W ignore benchmarks/report.py

chaos: $(READY) ## Ten minutes of kills, pauses and hostile clients (CHAOS_MINUTES=1: one); the table goes to docs/results
	@PYTHONPATH=tests CHAOS_TABLE=docs/results/chaos.md $(BIN)/python -W ignore benchmarks/chaos.py

.venv-docs/.ready: pyproject.toml # its own, so that .venv stays quick to set up; leco itself is not installed, only read
	@echo "Setting up .venv-docs ..."
	@$(PYTHON) -m venv --clear .venv-docs
	@$(PYTHON) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"], sep="\n")' > .venv-docs/requirements.txt
	@.venv-docs/bin/pip install --quiet --disable-pip-version-check --requirement .venv-docs/requirements.txt
	@touch $@

docs: .venv-docs/.ready ## Build the documentation into site/, and check every link in it
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

.venv-dist/.ready: # its own: what builds and checks packages, and nothing else
	@$(PYTHON) -m venv --clear .venv-dist
	@.venv-dist/bin/pip install --quiet --disable-pip-version-check build==1.6.1 twine==7.0.0
	@touch $@

dist: .venv-dist/.ready ## Build the wheel and the source distribution into dist/, and check what PyPI would
	@rm -rf dist
	@.venv-dist/bin/python -m build
	@.venv-dist/bin/twine check --strict dist/*

constraints: ## Bring constraints.txt up to date (in a fresh environment)
	$(PYTHON) -m venv --clear .venv-constraints
	.venv-constraints/bin/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	.venv-constraints/bin/pip freeze --exclude-editable | sed 's/^\(torch==[0-9.]*\)+.*/\1/' > constraints.txt
	rm -rf .venv-constraints

clean: ## Remove .venv and caches
	rm -rf .venv .venv-checkov .venv-docs .venv-dist dist site .k8s-lint .venv-rivals .venv-sample-factory .envpool .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
