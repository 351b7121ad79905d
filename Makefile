PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
PROCESSES := 2

.PHONY: demo lint ruff types test-quick test test-all tests notebook

$(VENV)/installed: pyproject.toml constraints.txt
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -e .[eval,glm,demo,train,dev] -c constraints.txt
	$(PY) -m pip check
	touch $@

demo: $(VENV)/installed
	$(PY) -m scripts.demo

lint: ruff types

ruff: $(VENV)/installed
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: $(VENV)/installed
	$(PY) -m mypy

# For who changes code: floors, settings and refusals, pages, a few cases of every family.
QUICK := tests/test_floors.py tests/configs tests/support tests/docs/test_pages.py \
	tests/decoding/test_any_settings.py tests/decoding/test_engine.py tests/decoding/test_trees.py
test-quick: ruff
	ADT_CASES=2 OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadgroup -k "not planted and not shrinks" $(QUICK)

# For two cores, with a third process for while others wait for a program that they started; those
# of `test-all` measure time. Types are checked beside the tests; after a failure again, so that an
# error of theirs stands last and not among the tests' dots.
test: ruff
	$(MAKE) --no-print-directory -j2 types tests PROCESSES=3 || ($(MAKE) --no-print-directory types; exit 1)

# Nothing is skipped for want of a browser: Chromium has to be installed.
test-all: lint
	ADT_TEST_ALL=1 $(MAKE) --no-print-directory tests

tests: $(VENV)/installed
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(PROCESSES) --dist loadgroup --max-worker-restart 0

# On an otherwise idle machine: the notebook's table marks times that cannot be trusted.
notebook: $(VENV)/installed
	$(PY) notebooks/execute.py
