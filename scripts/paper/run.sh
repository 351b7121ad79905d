#!/usr/bin/env bash
# The paper's table of one model, from its files to the report:
#
#   bash scripts/paper/run.sh RECIPE PROMPTS
#
# RECIPE   a model: anole, lumina_mgpt, llamagen, llamagen2, janus_pro, emu3, emu3_5, liquid, lumina_mgpt2, glm_image, image_gpt or tiny (configs/*.yaml)
# PROMPTS  coco (MS-COCO 2017 validation captions), parti (PartiPrompts), or a file of prompts
#
# It looks for files, downloads prompts, and at each temperature measures the speed, generates the
# images and evaluates them (docs/paper.md). It stops with one line where something is missing. The
# same command continues where it stopped, and with more IMAGES it adds to those that are there.
#
# Variables (default):
#   METHODS       rows (ar eagle2 adt): recipes of configs/paper, recipes by path, or methods, such as
#                 jacobi, which needs no drafter. Few models have a public drafter (docs/models.md):
#                 METHODS="ar jacobi" for the others, or DRAFTER=folder of your own.
#   IMAGES        prompts per row (100, as many as the paper has); -1: all, 5,000 of coco
#   BENCH         prompts of the speed table (10); REPEATS of it (3)
#   TEMPERATURES  (1 0)
#   DRAFTER       folder (the recipe's)
#   FLAGS         further flags of benchmark and generate_images, such as "--batch_size 4"
#   EVALUATE      flags of evaluate, such as "--ref_dir coco/val2017"
#   OUT           folder (outputs/paper/RECIPE_PROMPTS); PY interpreter
set -euo pipefail
usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit "$1"; }
case ${1:-} in -h | --help) usage 0 ;; esac
[ $# = 2 ] || usage 2 >&2
recipe=$1 prompts=$2
cd "$(dirname "$0")/../.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
METHODS=${METHODS:-ar eagle2 adt}
IMAGES=${IMAGES:-100} BENCH=${BENCH:-10} REPEATS=${REPEATS:-3} TEMPERATURES=${TEMPERATURES:-1 0}
OUT=${OUT:-outputs/paper/${recipe}_$(basename "$prompts" .txt)}
case $prompts in coco) prompts=MSCOCO2017Val ;; parti) prompts=PartiPrompts ;; esac
read -ra flags <<<"${FLAGS:-}"
read -ra judging <<<"${EVALUATE:-}"
flags+=(--prompt "$prompts")
step() { printf '\n== %s\n' "$1"; }
fail() { echo "error: $1" >&2; exit 1; }

case $prompts in
MSCOCO2017Val | MSCOCO2017Train | PartiPrompts) ;;
*) [ -s "$prompts" ] || fail "PROMPTS: expected coco, parti or a file of prompts, got $prompts, which is no file or empty" ;;
esac
case $OUT in *,*) fail "OUT: expected a folder without a comma, got $OUT" ;; esac # it stands in lists
model=configs/$recipe.yaml
if [ ! -e "$model" ]; then
  near=$("$PY" -c 'import sys; from configs.fields import near_names as near; print(near(sys.argv[1], sys.argv[2:]))' \
    "$recipe" $(basename -s .yaml configs/*.yaml)) || near=
  fail "RECIPE: expected a model of configs/*.yaml, got $recipe${near:+. $near}"
fi
if [ -n "${DRAFTER:-}" ]; then # in a recipe, since only rows with a drafter take it from there
  mkdir -p "$OUT"
  echo "drafter_path: $DRAFTER" >"$OUT/drafter.yaml"
  model+=,$OUT/drafter.yaml
fi

# A row is the same recipe in the speed table and for the images.
recipe_of() { # recipe_of ROW: its file; nothing for a method
  case $1 in *.yaml | *.yml) echo "$1" ;; *) [ ! -e "configs/paper/$1.yaml" ] || echo "configs/paper/$1.yaml" ;; esac
}
entries='' recipes=()
for row in $METHODS; do
  file=$(recipe_of "$row")
  entries+=,${file:-$row}
  [ -z "$file" ] || recipes+=("$file")
done

images_of() { # images_of ROW: the words that make its images at $temperature, into `words`
  local file=$(recipe_of "$1")
  if [ -n "$file" ]; then words=(--config "$file,$model"); else words=(--config "$model" --method "$1"); fi
  words+=(--temperature "$temperature" --num_images "$IMAGES")
  words+=(--output_dir "$OUT/T$temperature/$(basename "$1" .yaml)" "${flags[@]}")
}

code=(main.py configs decoding drafters eval models runs support '(' -name '*.py' -o -name '*.h' -o -name '*.cpp' ')')
inputs() { # what a table is made from: the content of its files, of weights their hashes, the code
  local file parts
  find "${code[@]}" -exec cksum {} + | sort
  IFS=, read -ra parts <<<"$model"
  for file in "${parts[@]}" "${recipes[@]}" "$OUT/hashes.json" "${flags[@]#--*=}"; do
    [ ! -f "$file" ] || cat "$file"
  done
}

measure() { # measure FOLDER WORDS...: the speed table, unless the same words and files made it
  local out=$1 made; shift
  made="$* $(inputs | cksum)"
  if [ -e "$out/benchmark.json" ] && [ "$made" = "$(cat "$out/benchmark.words" 2>/dev/null)" ]; then
    echo "measured already: $out/benchmark.txt; without $out/benchmark.json it is measured again"
    return
  fi
  rm -f "$out/benchmark.words" # a new benchmark.json is not the old words'
  "$PY" main.py benchmark "$@" --output_dir "$out" >"$out/benchmark.partial"
  mv "$out/benchmark.partial" "$out/benchmark.txt"
  echo "$made" >"$out/benchmark.words"
  sed '/^{"rows"/d' "$out/benchmark.txt" # all figures in one line; benchmark.json has them
}

step "files"
words=(--config "$model" --num_images "$IMAGES" "${flags[@]}")
"$PY" -m scripts.paper.needs --flags="$(printf '%q ' "${words[@]}")" --methods="$METHODS" --evaluate="${judging[*]}" \
  --hashes="$OUT/hashes.json"
case " ${flags[*]//-/_}" in # dashes in a flag's name are as good
*' __prompt_file'[\ =]*) ;;
*) case $prompts in PartiPrompts | MSCOCO2017Val) step "prompts"; bash scripts/get_prompts.sh "$prompts" ;; esac ;;
esac

runs=
for temperature in $TEMPERATURES; do
  for row in $METHODS; do images_of "$row"; runs+=$(printf '%q ' "${words[@]}")$'\n'; done
done
"$PY" -m scripts.paper.refused --runs="$runs" # before a table is measured that has no images

for temperature in $TEMPERATURES; do
  out=$OUT/T$temperature folders=
  mkdir -p "$out"
  step "T = $temperature: speed on $BENCH prompts"
  measure "$out" --config "$model" --temperature "$temperature" --num_images "$BENCH" \
    --repeats "$REPEATS" --methods "${entries#,}" "${flags[@]}"
  for row in $METHODS; do
    name=$(basename "$row" .yaml)
    step "T = $temperature: images by $name"
    images_of "$row"
    "$PY" main.py generate_images "${words[@]}"
    folders+=,$out/$name
  done
  step "T = $temperature: tables"
  "$PY" main.py evaluate --output_dir "${folders#,}" --report_dir "$out/evaluation" "${judging[@]}"
done
