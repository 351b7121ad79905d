#!/usr/bin/env bash
# The sweeps that ADT-Tree's defaults were chosen by, on the shipped model: this machine's costs,
# then counts on six validation prompts at T = 1 and T = 0, and plots. Three quarters of an hour on
# two cores; continues where it stopped.
# Variables: PY interpreter; OUT folder; SWEEPS of configs/sweeps; FLAGS further flags of main.py,
# such as "--proposal topk"; and those of paper/ablation.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
folder=${OUT:-outputs/sweeps/tiny}
costs=$folder/costs.json
mkdir -p "$folder"
[ -f "$costs" ] || "$PY" -m scripts.tools.costs --output "$costs"
for sweep in ${SWEEPS:-nodes bounds beta steps first init adapt trees}; do
  OUT=$folder/$sweep IMAGES=${IMAGES:-6} FLAGS="--costs $costs ${FLAGS:-}" \
    bash scripts/paper/ablation.sh "$sweep"
done
