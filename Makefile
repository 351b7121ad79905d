PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python

.PHONY: demo lint test-quick test test-all notebook

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -e .[eval,glm,demo,train,dev] -c constraints.txt
	$(PY) -m pip check
	touch $@

demo: $(VENV)/installed
	$(PY) -m scripts.demo

lint: $(VENV)/installed
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

# For who changes code: floors, settings and refusals, pages, a few cases of every family.
QUICK := tests/test_floors.py tests/configs tests/support tests/docs/test_pages.py \
	tests/decoding/test_any_settings.py tests/decoding/test_engine.py tests/decoding/test_trees.py
test-quick: $(VENV)/installed
	$(PY) -m ruff check .
	ADT_CASES=2 OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadgroup -k "not planted and not shrinks" $(QUICK)

test: lint
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadgroup --max-worker-restart 0

# Nothing is skipped for want of a browser: Chromium has to be installed.
test-all: lint
	ADT_TEST_ALL=1 OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadgroup --max-worker-restart 0

# On an otherwise idle machine: the notebook's table marks times that cannot be trusted.
notebook: $(VENV)/installed
	$(PY) notebooks/execute.py
