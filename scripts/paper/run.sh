#!/usr/bin/env bash
# The paper's main table: run.sh RECIPE PROMPT_SET, at T = 1 and T = 0. First the speed of plain
# decoding, EAGLE-2 and ADT-Tree on a few prompts, which tells at once if files are missing; then
# the images of all prompts with the same seeds, by the methods as published. If interrupted, the
# same command measures the speed again and continues the images where they stopped. `main.py
# evaluate` compares them.
# Variables: PY interpreter; OUT folder; METHODS: ar and names in configs/paper, such as lantern;
# IMAGES prompts per method (-1: all); BENCH prompts of the speed table; TEMPERATURES; DRAFTER
# folder, if not the recipe's; FLAGS further flags of main.py, such as "--batch_size 4".
set -euo pipefail
METHODS=${METHODS:-ar eagle2 adt}
IMAGES=${IMAGES:--1}
BENCH=${BENCH:-10}
recipe=$1 prompts=$2
cd "$(dirname "$0")/../.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
OUT=${OUT:-outputs/paper/${recipe}_$(basename "$prompts" .txt)}
read -ra flags <<<"${FLAGS:-}"
flags+=(--prompt "$prompts")
drafter=(${DRAFTER:+--drafter_path "$DRAFTER"})

for temperature in ${TEMPERATURES:-1 0}; do
  out=$OUT/T$temperature
  mkdir -p "$out"
  "$PY" main.py benchmark --config "configs/$recipe.yaml" --temperature "$temperature" \
    --num_images "$BENCH" --methods \
    ar,static:proposal=sampled:verifier=sampled,eagle2:proposal=topk,adt:proposal=topk:nodes=58,adt \
    "${drafter[@]}" "${flags[@]}" | tee "$out/benchmark.txt"
  for method in $METHODS; do
    row=(--config "configs/$recipe.yaml" --method ar)
    if [ "$method" != ar ]; then
      paper=configs/paper/$method.yaml
      name=$(sed -n 's/^method: //p' "$paper")
      row=(--config "$paper,configs/$recipe.yaml" --method "$name" "${drafter[@]}")
    fi
    "$PY" main.py generate_images "${row[@]}" --temperature "$temperature" \
      --num_images "$IMAGES" --output_dir "$out/$method" "${flags[@]}"
  done
done
