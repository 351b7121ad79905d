#!/usr/bin/env bash
# The main table on a prompt set, at T = 1 and T = 0: speed of plain decoding, EAGLE-2 and ADT-Tree on a part of it, then
# their images of all of it with the same seeds, by the methods as published: run.sh RECIPE PROMPT_SET. The speed comes
# first because it tells at once which files are missing. An interrupted run measures again and continues its images
# where they stopped.
# Variables: PY interpreter; OUT folder; METHODS: ar and names in configs/paper, such as lantern; IMAGES prompts per
# method (-1: all); BENCH prompts of the speed table; TEMPERATURES; DRAFTER its folder, if not the recipe's; FLAGS further
# flags of main.py, such as "--batch_size 4".
set -euo pipefail
PY=${PY:-python}
METHODS=${METHODS:-ar eagle2 adt}
IMAGES=${IMAGES:--1}
BENCH=${BENCH:-10}
recipe=$1 prompts=$2
cd "$(dirname "$0")/../.."
OUT=${OUT:-outputs/paper/${recipe}_$(basename "$prompts" .txt)}
read -ra flags <<<"${FLAGS:-}"
flags+=(--prompt "$prompts")
drafter=(${DRAFTER:+--drafter_path "$DRAFTER"})

for temperature in ${TEMPERATURES:-1 0}; do
  out=$OUT/T$temperature
  mkdir -p "$out"
  "$PY" main.py benchmark --config "configs/$recipe.yaml" --temperature "$temperature" --num_images "$BENCH" \
    --methods ar,eagle2:proposal=topk,adt:proposal=topk:nodes=58,adt "${drafter[@]}" "${flags[@]}" | tee "$out/benchmark.txt"
  for method in $METHODS; do
    row=(--config "configs/$recipe.yaml" --method ar)
    if [ "$method" != ar ]; then
      paper=configs/paper/$method.yaml
      row=(--config "$paper,configs/$recipe.yaml" --method "$(sed -n 's/^method: //p' "$paper")" "${drafter[@]}")
    fi
    "$PY" main.py generate_images "${row[@]}" --temperature "$temperature" \
      --num_images "$IMAGES" --output_dir "$out/$method" "${flags[@]}"
  done
done
