#!/usr/bin/env bash
# An ablation of the paper, at T = 1 and T = 0:
#
#   bash scripts/paper/ablation.sh NAME
#
# NAME is one of
#   beta bounds steps first nodes   ADT-Tree's threshold, bounds, steps, first tree, budget of nodes
#   paper_beta paper_init           threshold and start in the paper's row: 58 nodes, `topk` drafts
#   init adapt                      the tree that the next one starts from; what adapts it
#   trees proposals calibration     trees that never change; drafts; calibrated path scores
#   window                          drafts without a drafter
#   lantern                         relaxed acceptance, speed against quality
# each a file of configs/sweeps, whose cells are measured next to plain decoding; or
#   drafter                         what the parts of a drafter's training are worth: one training per
#                                   row on the same tokens, then a table
#   maps                            where drafts are accepted, and how that correlates with neighbours:
#                                   for trees that never change, and for ADT-Tree
# The same command continues where it stopped.
#
# Variables (default):
#   RECIPE        of the model (tiny); for drafter, of configs/training
#   PROMPTS       coco, parti or a file (of the tiny model its validation prompts; for maps, its test
#                 prompts)
#   IMAGES        of them (16; maps 32); at least 8 for intervals
#   TEMPERATURES  (1 0)
#   METHODS       of maps (eagle2 adt)
#   TOKENS, ROWS  of drafter: folders of extract_tokens (work/RECIPE/own); rows of the table (all)
#   FLAGS         further flags of main.py, such as "--cells 0-4", "--device cuda:1", "--steps 500"
#   OUT           folder (outputs/paper/NAME); PY interpreter
set -euo pipefail
usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit "$1"; }
case ${1:-} in -h | --help) usage 0 ;; esac
[ $# = 1 ] || usage 2 >&2
name=$1
cd "$(dirname "$0")/../.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
RECIPE=${RECIPE:-tiny}
case ${PROMPTS:-} in coco) PROMPTS=MSCOCO2017Val ;; parti) PROMPTS=PartiPrompts ;; esac
if [ "$RECIPE" != tiny ] && [ "$name" != drafter ] && [ -z "${PROMPTS:-}" ]; then
  echo "error: PROMPTS: expected coco, parti or a file for RECIPE=$RECIPE, got nothing" >&2
  exit 1
fi
OUT=${OUT:-outputs/paper/$name}
read -ra flags <<<"${FLAGS:-}"

sweep() {
  for temperature in ${TEMPERATURES:-1 0}; do
    "$PY" main.py benchmark --config "configs/$RECIPE.yaml" --sweep "configs/sweeps/$name.yaml" \
      --prompt "${PROMPTS:-configs/prompts/tiny_validation.txt}" --num_images "${IMAGES:-16}" \
      --temperature "$temperature" --output_dir "$OUT/T$temperature" "${flags[@]}"
  done
}

maps() {
  for method in ${METHODS:-eagle2 adt}; do
    "$PY" main.py generate_images --config "configs/$RECIPE.yaml" --method "$method" --trace \
      --prompt "${PROMPTS:-configs/prompts/tiny_test.txt}" --num_images "${IMAGES:-32}" \
      --output_dir "$OUT/$method" "${flags[@]}"
    "$PY" -m scripts.tools.maps --run "$OUT/$method"
  done
}

drafter() {
  # depths, guidance, noise, layers, alignment, agreement weight, further flags. `published` is
  # EAGLE's recipe; `plain` is the same with our optimiser, loss weights and enlarged embeddings.
  local -A table=(
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
  local folders=() depths guidance noise layers alignment agreement more
  for row in ${ROWS:-published plain full agreement shifted depths1 depths4 unguided noiseless layers2}; do
    read -r depths guidance noise layers alignment agreement more <<<"${table[$row]}"
    read -ra more <<<"$more"
    "$PY" main.py train_drafter --config "configs/training/$RECIPE.yaml" \
      --tokens "${TOKENS:-work/$RECIPE/own}" --output_dir "$OUT/$row" --depths "$depths" \
      --guidance_aware "$guidance" --feature_noise "$noise" --layers "$layers" \
      --alignment "$alignment" --agreement_weight "$agreement" "${more[@]}" "${flags[@]}"
    folders+=("$OUT/$row")
  done
  mkdir -p "$OUT"
  "$PY" -m scripts.tools.drafter_table "${folders[@]}" | tee "$OUT/table.md"
}

case $name in
drafter | maps) "$name" ;;
*)
  if [ ! -e "configs/sweeps/$name.yaml" ]; then
    echo "error: NAME: expected drafter, maps or a file of configs/sweeps, got $name" >&2
    exit 1
  fi
  sweep ;;
esac
