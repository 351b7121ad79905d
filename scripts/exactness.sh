#!/usr/bin/env bash
# Checks every lossless method against plain decoding, with `benchmark`:
#
#   bash scripts/exactness.sh [--thin]
#
# T = 0 and 1, with and without top-k and top-p, guidance scales 1 and 3, batches of 1 and 3. First in
# fp64, where every difference is an error, then in fp32, where the tables count near-ties. It takes a
# day on two cores. --thin takes two prompts and two images of each, and two hours. If the check is
# interrupted, run the same command again: it measures what is missing. With another model, other
# methods or other code it measures all again.
#
# Variables (default): PROMPTS how many (20); SEEDS images of each (2); METHODS as in benchmark (all);
# MODEL folder (ckpts/tiny); OUT folder of the tables (outputs/exactness, or outputs/exactness_thin);
# PY interpreter.
set -euo pipefail
usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit "$1"; }
prompts=20 thin=
for word in "$@"; do
  case $word in
  --thin) prompts=2 thin=_thin ;; # a folder of its own: tables that are there are not made again
  -h | --help) usage 0 ;;
  *) usage 2 >&2 ;;
  esac
done
cd "$(dirname "$0")/.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
OUT=${OUT:-outputs/exactness$thin}
MODEL=${MODEL:-ckpts/tiny} PROMPTS=${PROMPTS:-$prompts} SEEDS=${SEEDS:-2}
if [ -z "${METHODS:-}" ]; then
  METHODS=
  for proposal in topk coupled; do
    for method in static eagle2 jacobi recall eagle_recall block adt \
      adt:adt_init={vertical,random,fixed} adt:adt_adapt={random,confidence,none} \
      adt:adt_init=vertical:adt_alpha=neighbour; do
      METHODS+=,$method:proposal=$proposal
    done
  done
fi
failed=()
for dtype in fp64 fp32; do
  for cfg in 1 3; do
    for sampling in "--temperature 0" "--temperature 1" "--top_k 200 --top_p 0.9"; do
      for batch in 1 3; do
        words=(--dtype "$dtype" --cfg "$cfg" $sampling --batch_size "$batch")
        folder=$OUT/$(tr -s ' -' _ <<<"${words[*]}")
        "$PY" main.py benchmark --model tiny --model_path "$MODEL" "${words[@]}" \
          --prompt configs/prompts/tiny_test.txt --num_images "$PROMPTS" \
          --samples_per_prompt "$SEEDS" --repeats 1 --warmup 0 --methods "${METHODS#,}" \
          --output_dir "$folder" | sed '/^{"rows"/d' || failed+=("$folder")
      done
    done
  done
done
[ ${#failed[@]} = 0 ] || { echo "error: wrong images: ${failed[*]}; see above" >&2; exit 1; }
