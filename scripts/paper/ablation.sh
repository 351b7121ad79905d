#!/usr/bin/env bash
# An ablation of the paper: the cells of configs/sweeps/NAME.yaml, each beside plain decoding: ablation.sh NAME. Continues
# where it was stopped. A table, sweep.jsonl and pictures per temperature.
# Variables: PY interpreter; OUT folder; RECIPE a model's; PROMPTS, IMAGES of them: validation prompts, at least 8 for
# intervals; TEMPERATURES; FLAGS further flags of main.py, such as "--costs FILE", "--cells 0-4", "--device cuda:1".
set -euo pipefail
PY=${PY:-python}
cd "$(dirname "$0")/../.."
OUT=${OUT:-outputs/paper/$1}
read -ra flags <<<"${FLAGS:-}"
for temperature in ${TEMPERATURES:-1 0}; do
  "$PY" main.py benchmark --config "configs/${RECIPE:-tiny}.yaml" --sweep "configs/sweeps/$1.yaml" \
    --prompt "${PROMPTS:-configs/prompts/tiny_validation.txt}" --num_images "${IMAGES:-16}" \
    --temperature "$temperature" --output_dir "$OUT/T$temperature" "${flags[@]}"
done
