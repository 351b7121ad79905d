#!/usr/bin/env bash
# The rounds behind docs/results/adt.md, and its tables and picture: bash scripts/trees/run.sh [OUT]
#
# It takes an hour or two on two CPU cores and continues where it stopped. PROMPTS: start-stop.
set -euo pipefail
cd "$(dirname "$0")/../.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
OUT=${1:-outputs/trees} PROMPTS=${PROMPTS:-0-32}
trees() { "$PY" -m scripts.trees.measure --output "$OUT" --slice "$PROMPTS" "$@"; }
trees --temperature 0
trees --temperature 1
trees --temperature 1 --proposal coupled
lantern() { # lantern ROW RECIPE SUFFIX TEMPERATURE WORDS...: its images are its own, so the target runs
  "$PY" main.py generate_images --prompt configs/prompts/tiny_test.txt --slice "$PROMPTS" --seed 9 --batch_size 8 --trace \
    --config "configs/paper/$2$3.yaml" --temperature "$4" --output_dir "$OUT/T$4_lantern$3/$1" "${@:5}"
}
rows() { # rows SUFFIX TEMPERATURE
  lantern adt adt_lantern "$@"
  lantern eagle2_d5 lantern "$@"
  lantern eagle2_d8 lantern "$@" --depth 8
}
rows '' 0
rows '' 1
rows _published 1
"$PY" -m scripts.trees.verdict --runs "$OUT"
