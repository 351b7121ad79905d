#!/usr/bin/env bash
# The sweeps behind ADT-Tree's defaults on the shipped model: this machine's costs, then counts on validation prompts at
# T = 1 and T = 0, and pictures. Some minutes on two cores; continues where it was stopped.
# PY, OUT: interpreter and folder. Further arguments go to the sweeps, such as --proposal topk.
set -euo pipefail
PY=${PY:-python}
OUT=${OUT:-outputs/sweeps/tiny}
cd "$(dirname "$0")/.."
mkdir -p "$OUT"
[ -f "$OUT/costs.json" ] || "$PY" -m scripts.costs --output "$OUT/costs.json"
for temperature in 1 0; do
  for sweep in nodes bounds beta steps; do
    "$PY" main.py benchmark --sweep "configs/sweeps/$sweep.yaml" --costs "$OUT/costs.json" --temperature $temperature \
      --prompt configs/prompts/tiny_validation.txt --num_images 6 --output_dir "$OUT/${sweep}_T$temperature" "$@"
  done
done
