#!/usr/bin/env bash
# What each part of a drafter's training is worth: one training per row, all on the same images,
# with the same seed and number of steps, then one table. Continues where it stopped.
# Variables: PY interpreter; OUT folder; RECIPE of configs/training; TOKENS a folder of
# extract_tokens; ROWS of the table; FLAGS further flags of train_drafter, such as "--steps 500
# --cache_features DIR".
set -euo pipefail
RECIPE=${RECIPE:-tiny}
cd "$(dirname "$0")/../.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
OUT=${OUT:-outputs/paper/drafter_$RECIPE}
TOKENS=${TOKENS:-work/$RECIPE/own}
read -ra flags <<<"${FLAGS:-}"

# Each row: depths, guidance, noise, layers, alignment, agreement weight, further flags. `published` is
# EAGLE's recipe; `plain` is the same with our optimiser, loss weights and enlarged embeddings.
declare -A table=(
  [published]="1 false 0.05 1 inference 0 --optimizer adamw --ce_weight 0.1 --noenlarge_embeddings"
  [plain]="1 false 0.05 1 inference 0"
  [full]="2 true 0.05 1 inference 0"
  [agreement]="2 true 0.05 1 inference 2"
  [shifted]="2 true 0.05 1 shifted 0"
  [depths1]="1 true 0.05 1 inference 0"
  [depths4]="4 true 0.05 1 inference 0"
  [unguided]="2 false 0.05 1 inference 0"
  [noiseless]="2 true 0 1 inference 0"
  [layers2]="2 true 0.05 2 inference 0"
)
folders=()
for name in ${ROWS:-published plain full agreement shifted depths1 depths4 unguided noiseless layers2}; do
  read -r depths guidance noise layers alignment agreement own <<<"${table[$name]}"
  read -ra own <<<"$own"
  "$PY" main.py train_drafter --config "configs/training/$RECIPE.yaml" --tokens "$TOKENS" \
    --output_dir "$OUT/$name" --depths "$depths" --guidance_aware "$guidance" --feature_noise "$noise" --layers "$layers" \
    --alignment "$alignment" --agreement_weight "$agreement" "${own[@]}" "${flags[@]}"
  folders+=("$OUT/$name")
done
mkdir -p "$OUT"
"$PY" -m scripts.tools.drafter_table "${folders[@]}" | tee "$OUT/table.md"
