# Everything runs in a virtual environment of its own, .venv, made on first use.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: demo test check bench clean

demo: $(READY)
	$(BIN)/nonneg demo --overwrite

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: $(READY)
	$(BIN)/ruff format --check src tests experiments benchmarks
	$(BIN)/ruff check src tests experiments benchmarks
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest -n 2 --dist loadfile

bench: $(READY)
	$(BIN)/python benchmarks/augment.py
	$(BIN)/python benchmarks/train_step.py

$(READY): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf .venv .pytest_cache .ruff_cache
