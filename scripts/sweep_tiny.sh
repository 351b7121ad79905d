#!/usr/bin/env bash
# The sweep behind ADT-Tree's defaults on the shipped model: this machine's costs, counts on validation prompts at T = 1
# and T = 0, a picture of each. Some minutes on two cores; continues where it was stopped.
# PY, OUT: interpreter and folder. Further arguments go to the sweeps, such as --method adt:proposal=topk.
set -euo pipefail
PY=${PY:-python}
OUT=${OUT:-configs/sweeps}
cd "$(dirname "$0")/.."
[ -f "$OUT/costs.json" ] || "$PY" -m scripts.costs --output "$OUT/costs.json"
for temperature in 1 0; do
  for grid in "adt_k_max=8,nodes=6|8|12,adt_d_max=3|4|6" "adt_k_max=3|4|6,nodes=6,adt_d_max=3"; do
    "$PY" -m scripts.sweep --grid "$grid" --images 6 --temperature $temperature \
      --costs "$OUT/costs.json" --report "$OUT/adt.jsonl" "$@"
  done
done
"$PY" -m scripts.sweep_figure --costs "$OUT/costs.json" --report "$OUT/adt.jsonl" --output "$OUT/adt.png"
