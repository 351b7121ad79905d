#!/usr/bin/env bash
# The paper's table of one model, from nothing to the report: run.sh RECIPE PROMPT_SET.
# 1. The prompt set, downloaded if it is not here.
# 2. What is here and what is missing, with sizes of memory, sources, and the metrics to expect.
# 3. At each temperature the speed on a few prompts, and an estimate of the hours.
# 4. The images of all prompts, by all methods with the same seeds.
# 5. The tables of speed and image quality, and the report.
# It stops with one line where something is missing. The same command continues where it stopped, and
# with more IMAGES it adds to those that are there.
# Variables: PY interpreter; OUT folder; METHODS: names in configs/paper, such as lantern, and
# methods, such as ar or jacobi; IMAGES prompts per method (-1: all); BENCH prompts of the speed
# table, REPEATS of it; TEMPERATURES; DRAFTER folder, if not the recipe's; FLAGS further flags of
# benchmark and generate_images, such as "--batch_size 4"; EVALUATE flags of evaluate, such as
# "--ref_dir coco/val2017".
set -euo pipefail
METHODS=${METHODS:-ar eagle2 adt}
IMAGES=${IMAGES:--1}
BENCH=${BENCH:-10}
EVALUATE=${EVALUATE:-}
recipe=$1 prompts=$2
cd "$(dirname "$0")/../.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
OUT=${OUT:-outputs/paper/${recipe}_$(basename "$prompts" .txt)}
read -ra flags <<<"${FLAGS:-}"
read -ra judging <<<"$EVALUATE"
flags+=(--prompt "$prompts")
step() { printf '\n== %s\n' "$1"; }

row() { # row METHOD: the flags of a row in `row`
  local paper=configs/paper/$1.yaml
  row=(--config "$model" --method "$1")
  if [ -e "$paper" ]; then
    row=(--config "$paper,$model" --method "$(sed -n 's/^method: //p' "$paper")")
  fi
}

measure() { # measure FOLDER WORDS...: the speed table, unless the same words have made it already
  local out=$1; shift
  if [ -e "$out/benchmark.json" ] && [ "$*" = "$(cat "$out/benchmark.words" 2>/dev/null)" ]; then
    echo "measured already: $out/benchmark.txt"
  else
    "$PY" main.py benchmark "$@" --output_dir "$out" >"$out/benchmark.partial"
    mv "$out/benchmark.partial" "$out/benchmark.txt"
    echo "$*" >"$out/benchmark.words"
    sed '/^{"rows"/d' "$out/benchmark.txt" # all figures in one line; benchmark.json has them
  fi
}

# The speed table: for rows of the paper its methods, sampled drafts and our own defaults; all others.
measured=ar
for method in $METHODS; do
  [ ! -e "configs/paper/$method.yaml" ] ||
    measured=ar,static:proposal=sampled:verifier=sampled,eagle2:proposal=topk,adt:proposal=topk:nodes=58,adt
done
for method in $METHODS; do
  [ "$method" = ar ] || [ -e "configs/paper/$method.yaml" ] || measured+=,$method
done

# A recipe's drafter goes only to methods that have one.
model=configs/$recipe.yaml
if [ -n "${DRAFTER:-}" ]; then
  mkdir -p "$OUT"
  echo "drafter_path: $DRAFTER" >"$OUT/drafter.yaml"
  model+=,$OUT/drafter.yaml
fi

case "$prompts ${FLAGS:-}" in
*--prompt_file*) ;;
PartiPrompts* | MSCOCO2017Val*) step "prompts"; bash scripts/get_prompts.sh "$prompts" ;;
esac
words=$(printf '%q ' --config "$model" --num_images "$IMAGES" "${flags[@]}")
step "files"
"$PY" -m scripts.tools.paper_needs --flags="$words" --methods="$METHODS" --evaluate="$EVALUATE"

for temperature in ${TEMPERATURES:-1 0}; do
  out=$OUT/T$temperature folders=
  mkdir -p "$out"
  step "T = $temperature: speed on $BENCH prompts"
  measure "$out" --config "$model" --temperature "$temperature" --num_images "$BENCH" \
    --repeats "${REPEATS:-3}" --methods "$measured" "${flags[@]}"
  "$PY" -m scripts.tools.paper_hours --benchmark="$out/benchmark.json" --flags="$words" \
    --methods="$METHODS"
  for method in $METHODS; do
    step "T = $temperature: images by $method"
    row "$method"
    "$PY" main.py generate_images "${row[@]}" --temperature "$temperature" \
      --num_images "$IMAGES" --output_dir "$out/$method" "${flags[@]}"
    folders+=,$out/$method
  done
  step "T = $temperature: tables"
  "$PY" main.py evaluate --output_dir "${folders#,}" --report_dir "$out/evaluation" "${judging[@]}"
done
