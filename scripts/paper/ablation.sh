#!/usr/bin/env bash
# An ablation of the paper: ablation.sh NAME measures the cells of configs/sweeps/NAME.yaml, each
# with plain decoding, at each temperature: a table, sweep.jsonl and plots. Continues where it
# stopped.
# Variables: PY interpreter; OUT folder; RECIPE of the model; PROMPTS file of validation prompts;
# IMAGES of them, at least 8 for intervals; TEMPERATURES; FLAGS further flags of main.py, such as
# "--costs FILE", "--cells 0-4", "--device cuda:1".
set -euo pipefail
cd "$(dirname "$0")/../.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
OUT=${OUT:-outputs/paper/$1}
read -ra flags <<<"${FLAGS:-}"
for temperature in ${TEMPERATURES:-1 0}; do
  "$PY" main.py benchmark --config "configs/${RECIPE:-tiny}.yaml" --sweep "configs/sweeps/$1.yaml" \
    --prompt "${PROMPTS:-configs/prompts/tiny_validation.txt}" --num_images "${IMAGES:-16}" \
    --temperature "$temperature" --output_dir "$OUT/T$temperature" "${flags[@]}"
done
