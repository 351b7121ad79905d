#!/usr/bin/env bash
# The paper's table of one model, from its files to the report:
#
#   bash scripts/paper/run.sh RECIPE PROMPTS
#
# RECIPE   a model of configs/*.yaml: anole, lumina_mgpt, llamagen, llamagen2, janus_pro, emu3, emu3_5, liquid, lumina_mgpt2, glm_image, image_gpt or tiny
# PROMPTS  coco (MS-COCO 2017 validation captions), parti (PartiPrompts), or a file of prompts
#
# First dry runs name what is missing and say how much there is to do, and a first image says how many
# hours that takes. Then, at each temperature, it measures the speed, generates the images and evaluates
# them (docs/paper.md). The same command continues where it stopped, and with more IMAGES it adds to
# those that are there. With CHECK=1 it stops after the dry runs.
#
# Variables (default): METHODS rows (ar eagle2 adt), which are recipes of configs/paper, recipes by
# path, or methods, such as jacobi, which needs no drafter; IMAGES prompts per row (100; -1: all);
# BENCH prompts of the speed table (10), REPEATS of it (3); TEMPERATURES (1 0); DRAFTER folder (the
# recipe's); BATCH images generated together in the last step (1), which changes none of them; FLAGS
# of benchmark and generate_images, such as "--cfg 4"; EVALUATE flags of evaluate, such as
# "--ref_dir coco/val2017"; OUT folder (outputs/paper/RECIPE_PROMPTS); PY interpreter.
set -euo pipefail
usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit "$1"; }
case ${1:-} in -h | --help) usage 0 ;; esac
[ $# = 2 ] || usage 2 >&2
cd "$(dirname "$0")/../.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
model=configs/$1.yaml prompts=$2 entries='' folders=''
OUT=${OUT:-outputs/paper/$1_$(basename "$2" .txt)}
METHODS=${METHODS:-ar eagle2 adt} TEMPERATURES=${TEMPERATURES:-1 0}
small=$(tr A-Z a-z <<<"$prompts")
case $small in "$prompts") ;; coco | parti) [ -e "$prompts" ] || { echo "error: PROMPTS: expected coco, parti or a file, got $prompts; did you mean $small?" >&2; exit 2; } ;; esac
case $prompts in coco) prompts=MSCOCO2017Val ;; parti) prompts=PartiPrompts ;; esac
for name in IMAGES BENCH REPEATS; do
  [[ ${!name:-1} =~ ^[1-9][0-9]*$ || $name${!name:-1} = IMAGES-1 ]] && continue
  echo "error: $name: expected a number of at least 1 (IMAGES=-1: all), got ${!name}" >&2; exit 2
done
read -ra flags <<<"${FLAGS:-}"
read -ra judging <<<"${EVALUATE:-}"
batch=(); [ -z "${BATCH:-}" ] || batch=(--batch_size "$BATCH")
case $prompts,${FLAGS:-} in *prompt[_-]file*) ;; MSCOCO2017Val,* | PartiPrompts,*) bash scripts/get_prompts.sh "$prompts" ;; esac
listed() { case $1 in *[,\"]*) printf '"%s"' "${1//\"/\"\"}" ;; *) printf %s "$1" ;; esac; } # a path in a list of paths
if [ -n "${DRAFTER:-}" ]; then # in a recipe, since only rows with a drafter take it from there
  quote="'" && mkdir -p "$OUT" && echo "drafter_path: '${DRAFTER//$quote/$quote$quote}'" >"$OUT/drafter.yaml"
  model+=,$(listed "$OUT/drafter.yaml")
fi
file_of() { local row=configs/paper/${1//-/_}.yaml; [ -e "$row" ] && echo "$row" || echo "$1"; }
for row in $METHODS; do entries+=,$(listed "$(file_of "$row")"); done
twice=$(for row in $METHODS; do basename "$row" .yaml; done | sort | uniq -d)
[ -z "$twice" ] || { echo "error: METHODS: expected rows of different names, got" $twice twice >&2; exit 2; }

checked=0 checks=$((($(wc -w <<<"$METHODS") + 1) * $(wc -w <<<"$TEMPERATURES")))
checking() { [ "${1:-}" != --dry_run ] || printf 'checking, %d of %d\n' $((checked += 1)) "$checks"; }

images() { # images ROW TEMPERATURE WORDS...: a row's images
  local file; file=$(file_of "$1")
  checking "${@:3}"
  case $file in *.y*ml) set -- "$@" --config "$(listed "$file"),$model" ;; *) set -- "$@" --config "$model" --method "$1" ;; esac
  "$PY" main.py generate_images --prompt "$prompts" --num_images "${IMAGES:-100}" --temperature "$2" \
    --output_dir "$OUT/T$2/$(basename "$1" .yaml)" "${flags[@]}" "${batch[@]}" "${@:3}"
}
hours() { # hours ROW TEMPERATURE: how long all will take at most, by the seconds of the first image
  local record seconds rows; rows=$(wc -w <<<"$METHODS")
  record=$(head -1 "$OUT/T$2/$(basename "$1" .yaml)/records.jsonl" 2>/dev/null) || return 0
  seconds=$(sed -n 's/.*"seconds": \([0-9.]*\).*/\1/p' <<<"$record")
  awk -v s="${seconds:-0}" -v rows="$rows" -v times="$(wc -w <<<"$TEMPERATURES")" -v images="${IMAGES:-100}" \
    -v bench="$((${BENCH:-10} * ${REPEATS:-3}))" '
    function time(hours) { return hours < 1 ? sprintf("%.0f min", hours * 60 + 0.5) : sprintf("%.1f h", hours) }
    BEGIN { h = s * rows * times / 3600
      printf "\n%.3g s an image: at most %s of measuring", s, time(h * bench)
      if (images > 0) printf " and %s of images", time(h * images)
      print ", if every row took as long one by one; drafts and BATCH make it less"
      printf "the ablations of docs/paper.md, at each temperature: at most %s (paper_beta) and %s (paper_init)\n",
        time(s * 16 * 3 * 2 * 6 / 3600), time(s * 16 * 3 * 2 * 5 / 3600) }' # prompts, repeats, a cell and ar, cells
}
table() { # table TEMPERATURE WORDS...: the speed of all rows, then their images
  [ $# != 1 ] || printf '\n== T = %s\n' "$1"
  checking "${@:2}"
  "$PY" main.py benchmark --config "$model" --prompt "$prompts" --num_images "${BENCH:-10}" --repeats "${REPEATS:-3}" \
    --temperature "$1" --methods "${entries#,}" --output_dir "$OUT/T$1" "${flags[@]}" "${@:2}" | sed '/^{"rows"/d'
  for row in $METHODS; do images "$row" "$@"; done
}
for temperature in $TEMPERATURES; do table "$temperature" --dry_run; done
[ -z "${CHECK:-}" ] || exit 0
first=${METHODS%% *} temperature=${TEMPERATURES%% *} # a first image, to ask evaluate about its flags
IMAGES=1 images "$first" "$temperature"
"$PY" main.py evaluate --output_dir "$(listed "$OUT/T$temperature/$(basename "$first" .yaml)")" "${judging[@]}" --dry_run
hours "$first" "$temperature"
for temperature in $TEMPERATURES; do
  table "$temperature"
  folders=$(for row in $METHODS; do printf , && listed "$OUT/T$temperature/$(basename "$row" .yaml)"; done)
  "$PY" main.py evaluate --output_dir "${folders#,}" --report_dir "$OUT/T$temperature/evaluation" "${judging[@]}"
done
"$PY" -m scripts.paper.table "$OUT"
