#!/usr/bin/env bash
# A speed table of plain decoding, EAGLE-2 and ADT-Tree on a part of a prompt set, then their images of all of it with the
# same seeds, by the methods as published: run.sh RECIPE PROMPT_SET. The table comes first because it tells at once which
# files are missing. An interrupted run measures again and continues its images where they stopped.
# Variables: PY interpreter; OUT folder; METHODS; IMAGES prompts per method (-1: all); BENCH prompts of the speed table;
# DRAFTER its folder, if not the recipe's; FLAGS further flags of main.py, such as "--batch_size 4 --device cuda:1".
set -euo pipefail
PY=${PY:-python}
METHODS=${METHODS:-ar eagle2 adt}
IMAGES=${IMAGES:--1}
BENCH=${BENCH:-10}
recipe=$1 prompts=$2
cd "$(dirname "$0")/../.."
OUT=${OUT:-outputs/paper/${recipe}_${prompts}}
read -ra flags <<<"${FLAGS:-}"
drafter=(${DRAFTER:+--drafter_path "$DRAFTER"})

mkdir -p "$OUT"
"$PY" main.py benchmark --config "configs/$recipe.yaml" --prompt "$prompts" --num_images "$BENCH" \
  --methods ar,eagle2:proposal=topk,adt:proposal=topk:nodes=58,adt "${drafter[@]}" "${flags[@]}" | tee "$OUT/benchmark.txt"
for method in $METHODS; do
  row=(--config "configs/paper/$method.yaml,configs/$recipe.yaml" "${drafter[@]}")
  [ "$method" != ar ] || row=(--config "configs/$recipe.yaml")
  "$PY" main.py generate_images "${row[@]}" --method "$method" --prompt "$prompts" \
    --num_images "$IMAGES" --output_dir "$OUT/$method" "${flags[@]}"
done
