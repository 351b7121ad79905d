PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
TOOLS := "ruff>=0.15,<0.18" "pytest>=8,<10" "pytest-xdist>=3.6,<4" "scipy>=1.13,<2" "playwright>=1.50,<2" \
	"nbclient>=0.10,<0.12" "nbformat>=5.10,<6" "ipykernel>=7,<8" "ipywidgets>=8,<9" "openai>=2,<4"

.PHONY: demo test test-all lint notebook

$(VENV)/installed: pyproject.toml requirements.txt constraints.txt Makefile
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	$(PY) -m pip install --quiet --disable-pip-version-check -e .[eval,demo,train] $(TOOLS) -c constraints.txt
	$(PY) -m pip check
	touch $@

demo: $(VENV)/installed
	PY=$(PY) bash scripts/demo.sh

lint: $(VENV)/installed
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

test: lint
	OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadgroup --max-worker-restart 0

# Nothing is skipped for want of a browser: Chromium has to be installed.
test-all: lint
	ADT_TEST_ALL=1 OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadgroup --max-worker-restart 0

# On an otherwise idle machine: the notebook's table marks times that cannot be trusted.
notebook: $(VENV)/installed
	$(PY) notebooks/execute.py
