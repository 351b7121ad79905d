#!/usr/bin/env bash
# Every method against plain decoding: 20 prompts x 2 seeds, T = 0 and 1, with and without top-k and top-p, CFG 1 and 3,
# batches of 1 and 3. First in fp64, where every difference is an error; then in fp32, where near-ties are counted.
# Takes a day on two cores, and continues where it was stopped; with --thin some hours: every cell then decodes a batch and
# one image more, and the cells of a law together decode every prompt and seed. `make test` runs a small grid.
# PY, OUT: interpreter and folder of the reports. Further arguments go to both runs.
set -euo pipefail
PY=${PY:-python}
OUT=${OUT:-outputs/exactness}
cd "$(dirname "$0")/.."
for dtype in fp64 fp32; do
  "$PY" -m scripts.tools.exactness_grid --grid full --prompts 20 --seeds 2 --dtype $dtype --report "$OUT/$dtype.jsonl" "$@"
done
