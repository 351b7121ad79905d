#!/usr/bin/env bash
# The rounds behind docs/results/adt.md, and its tables and picture: bash scripts/trees/run.sh [OUT]
#
# It takes some hours on two CPU cores and continues where it stopped. PROMPTS: start-stop.
set -euo pipefail
cd "$(dirname "$0")/../.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
OUT=${1:-outputs/trees} PROMPTS=${PROMPTS:-0-32}
traced() { # traced SETTING ROW TEMPERATURE WORDS...: images, and their rounds
  "$PY" main.py generate_images --prompt configs/prompts/tiny_test.txt --slice "$PROMPTS" --seed 9 --batch_size 8 --trace \
    --device cpu --temperature "$3" --output_dir "$OUT/$1/$2" "${@:4}"
}
exact() { # exact TEMPERATURE PROPOSAL: the paper's trees, trees of one size, controls
  local setting=T$1_$2_seed9 adt=(--config configs/paper/adt.yaml --proposal "$2") depth control
  traced "$setting" adt "$1" "${adt[@]}"
  for depth in 5 6 8 4 7 3; do
    traced "$setting" "eagle2_d$depth" "$1" --method eagle2 --depth "$depth" --proposal "$2"
  done
  # with beta 0.5, where a random direction goes either way as often
  for control in "" --adt_adapt=random --adt_adapt=confidence --adt_init=vertical; do
    traced "$setting" "adt:adt_beta=0.5${control/--/:}" "$1" "${adt[@]}" --adt_beta 0.5 $control
  done
  traced "$setting" adt:adt_beta=0.9 "$1" "${adt[@]}" --adt_beta 0.9
}
lantern() { # lantern SUFFIX TEMPERATURE
  traced "T$2_lantern$1" adt "$2" --config "configs/paper/adt_lantern$1.yaml"
  traced "T$2_lantern$1" eagle2_d5 "$2" --config "configs/paper/lantern$1.yaml"
  traced "T$2_lantern$1" eagle2_d8 "$2" --config "configs/paper/lantern$1.yaml" --depth 8
}
exact 0 topk
exact 1 topk
exact 1 coupled
lantern '' 0
lantern '' 1
lantern _published 1
"$PY" -m scripts.trees.verdict --runs "$OUT"
