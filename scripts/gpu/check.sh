#!/usr/bin/env bash
# Checks correctness and speed on a CUDA machine: tokens, rounds, prediction, methods (docs/gpu.md).
#
#   bash scripts/gpu/check.sh [--device cuda:N | cpu] [--small]
#
# It needs no network, and writes a checkpoint of 15 GB into OUT. If it is interrupted, run the same
# command again; what is measured is kept. At the end it writes OUT/check.md, with all tables, and
# OUT.tar.gz, which is what to send back. --small takes small sizes, some minutes; so does a machine
# without a GPU.
#
# Variables (default): OUT folder (outputs/gpu_check); MODEL a checkpoint of the tiny model's layout
# (ckpts/tiny); PY interpreter.
set -euo pipefail
usage() { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit "$1"; }
device=auto small=
while [ $# -gt 0 ]; do
  case $1 in
  --device) device=${2:?--device: expected cuda, cuda:N or cpu}; shift 2 ;;
  --small) small=1; shift ;;
  -h | --help) usage 0 ;;
  *) usage 2 >&2 ;;
  esac
done
cd "$(dirname "$0")/../.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
OUT=${OUT:-outputs/gpu_check}
MODEL=${MODEL:-ckpts/tiny}
random=$OUT/random_anole
mkdir -p "$OUT"
failed=() skipped=
[ "$device" != auto ] ||
  device=$("$PY" -c 'import torch; print("cuda" if torch.cuda.is_available() else "cpu")')
if [ "$device" = cpu ]; then
  small=1 skipped="No GPU: skipped CUDA graphs, kernel launches, the host's share, waits, GPU memory and the size of 7B."
fi
methods=ar,jacobi,recall,eagle2:proposal=topk,adt,configs/paper/adt.yaml,configs/paper/lantern.yaml,configs/fast/n58.yaml,configs/fast/block58.yaml
tokens=() checkpoint=() rounds=() batches="1 8" images=8
predicted=(--measured "$OUT/measurements.jsonl")
if [ "$small" ]; then
  methods=ar,jacobi paper=configs/paper/eagle2.yaml,configs/paper/adt.yaml
  tokens=(--images 1 --methods "$methods,$paper,eagle2:proposal=topk:verifier=rejection")
  rounds=(--batches 1 --rounds 4 --methods "$methods,$paper")
  checkpoint=(--scale 32 --layers 2) images=2 batches=2
  predicted=(--model tiny --methods jacobi)
fi

run() { # run NAME COMMAND...: its table goes to OUT/NAME.md; the check goes on if it fails
  local name=$1; shift
  # benchmark's last output, all its figures in one JSON object, is in benchmark.json, too
  "$@" | sed '/^{"rows"/d' | tee "$OUT/$name.md" || failed+=("$name")
}

run tokens "$PY" -m scripts.gpu.tokens --device "$device" --model_path "$MODEL" \
  --output "$OUT/measurements.jsonl" "${tokens[@]}"
if [ ! -e "$random/Anole-7b-v0.1-hf/config.json" ]; then # the last file that is written
  "$PY" -m scripts.tools.random_checkpoint --model anole --size full --output "$random" \
    "${checkpoint[@]}" >&2
fi
run rounds "$PY" -m scripts.gpu.rounds --device "$device" --model_path "$random" \
  --output "$OUT/measurements.jsonl" "${rounds[@]}"
run predicted "$PY" -m scripts.gpu.predict "${predicted[@]}"
for batch in $batches; do
  run "methods_batch$batch" "$PY" main.py benchmark --model tiny --model_path "$MODEL" --device "$device" \
    --dtype fp32 --compile auto --batch_size "$batch" --seed 9 --prompt configs/prompts/tiny_test.txt \
    --num_images "$images" --methods "$methods" --output_dir "$OUT/methods_batch$batch"
done
{ echo "$skipped"; cat "$OUT"/{tokens,rounds,predicted,methods_batch*}.md; } >"$OUT/check.md"
tar -C "$OUT" --exclude random_anole -czf "$OUT.tar.gz" .
echo "${skipped:+$skipped }Send back: $OUT.tar.gz"
[ ${#failed[@]} = 0 ] || { echo "error: failed: ${failed[*]}; see above" >&2; exit 1; }
