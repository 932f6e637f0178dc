# A front for commands that can be typed by hand: each target is a few readable lines.

PYTHON ?= python3
BIN := .venv/bin
SENTENCE := Julie est fatiguée, donc elle ne va pas travailler.

# Where Python may not keep what it compiled, every process compiles all packages anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test check lint tensorboard clean

help: ## print the targets
	@awk -F ':.*## ' '/^[a-z]+:.*##/ { printf "%-14s%s\n", $$1, $$2 }' Makefile

.venv/.runtime: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' || { echo "Python 3.11 to 3.14 is needed: make PYTHON=python3.14 ..."; exit 1; }
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -r requirements.txt
	touch $@

.venv/.dev: requirements-dev.txt .venv/.runtime
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -r requirements-dev.txt
	touch $@

demo: .venv/.runtime ## train a small model on the embedded corpus, translate, score, draw (minutes on a laptop)
	$(BIN)/python train.py --config configs/demo.py
	$(BIN)/python inference.py --src_text "Le chat noir dort." --src_text "Il y a un livre sur la table." --src_text "$(SENTENCE)"
	$(BIN)/python test.py
	$(BIN)/python visualize.py attention --src_text "$(SENTENCE)"
	$(BIN)/python visualize.py encoding
	@echo "The run lies in $$(ls -td runs/demo_* | head -n 1): checkpoints, tokenizer, logs, and in results/ translations, scores and pictures."

test: .venv/.dev ## run the whole test suite
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

check: .venv/.dev ## run the fast tests of all but benchmarks and experiments: what to run while working
	$(BIN)/python -m pytest -n 2 -m "not slow" --ignore=tests/benchmarks --ignore=tests/experiments

lint: .venv/.dev ## ruff (format and check) and mypy
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/python -m mypy

tensorboard: .venv/.runtime ## show the logs of all runs at http://localhost:6006
	$(BIN)/python -m tensorboard.main --logdir runs

clean: ## remove caches and the virtual environment; runs stay
	rm -rf .venv data/cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
