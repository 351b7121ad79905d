#!/usr/bin/env bash
# What each part of the training of a drafter is worth: one training per row, all on the same images, with the same seed
# and number of steps; then one table. An interrupted run continues where it stopped.
# Variables: PY interpreter; OUT folder; RECIPE of configs/training; TOKENS a folder of extract_tokens; ROWS of the table;
# FLAGS further flags of train_drafter, such as "--steps 500 --cache_features DIR".
set -euo pipefail
PY=${PY:-python}
RECIPE=${RECIPE:-tiny}
cd "$(dirname "$0")/../.."
OUT=${OUT:-outputs/paper/drafter_$RECIPE}
TOKENS=${TOKENS:-work/$RECIPE/own}
read -ra flags <<<"${FLAGS:-}"

# depths, guidance, noise, layers, alignment of each row
declare -A table=(
  [plain]="1 false 0.05 1 inference"
  [full]="2 true 0.05 1 inference"
  [shifted]="2 true 0.05 1 shifted"
  [depths1]="1 true 0.05 1 inference"
  [depths4]="4 true 0.05 1 inference"
  [unguided]="2 false 0.05 1 inference"
  [noiseless]="2 true 0 1 inference"
  [layers2]="2 true 0.05 2 inference"
)
folders=()
for name in ${ROWS:-plain full shifted depths1 depths4 unguided noiseless layers2}; do
  read -r depths guidance noise layers alignment <<<"${table[$name]}"
  "$PY" main.py train_drafter --config "configs/training/$RECIPE.yaml" --tokens "$TOKENS" --output_dir "$OUT/$name" \
    --depths "$depths" --guidance_aware "$guidance" --feature_noise "$noise" --layers "$layers" \
    --alignment "$alignment" "${flags[@]}"
  folders+=("$OUT/$name")
done
mkdir -p "$OUT"
"$PY" -m scripts.drafter_table "${folders[@]}" | tee "$OUT/table.md"
