#!/usr/bin/env bash
# The sweeps behind ADT-Tree's defaults on the shipped model: this machine's costs, then counts on validation prompts at
# T = 1 and T = 0, and pictures. About an hour and a half on two cores; continues where it was stopped.
# Variables: PY interpreter; OUT folder; TEMPERATURES; SWEEPS of configs/sweeps. Further arguments go to the sweeps, such
# as --proposal topk.
set -euo pipefail
PY=${PY:-python}
cd "$(dirname "$0")/.."
OUT=${OUT:-outputs/sweeps/tiny}
mkdir -p "$OUT"
[ -f "$OUT/costs.json" ] || "$PY" -m scripts.costs --output "$OUT/costs.json"
for temperature in ${TEMPERATURES:-1 0}; do
  for sweep in ${SWEEPS:-nodes bounds beta steps first init adapt trees}; do
    "$PY" main.py benchmark --sweep "configs/sweeps/$sweep.yaml" --costs "$OUT/costs.json" --temperature "$temperature" \
      --prompt configs/prompts/tiny_validation.txt --num_images 6 --output_dir "$OUT/${sweep}_T$temperature" "$@"
  done
done
