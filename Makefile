# One word each; what they do is in tools/. `make` alone lists them.
.DEFAULT_GOAL := help
.PHONY: help setup demo test test-full check bench bench-growth clean
PY := .venv/bin/python

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS="$$(printf '\t')" read -r n w; do printf '  make %-10s %s\n' "$$n" "$$w"; done

setup: ## create .venv with everything (PYTHON=... chooses the interpreter)
	@tools/setup

demo: ## deliver, fail, crash and recover against a real receiver; under a minute
	@tools/setup --runtime
	@$(PY) examples/demo/run.py

test: ## every clause once, on every Python present, and the wheel; about 17 minutes on 2 cores
	@tools/test

test-full: ## the long runs too, and every mutant
	@tools/test --full

check: ## lint, format, types, import contracts, promise index
	@tools/check

bench: ## ratios against peers measured in the same run
	@tools/setup --bench
	@mkdir -p build
	@$(PY) benchmarks/run.py

bench-growth: ## the long ones: a million waiting, five million finished, a pinned snapshot
	@tools/setup --bench
	@mkdir -p build
	@$(PY) benchmarks/growth.py

clean: ## remove what the above made
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests tools benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
