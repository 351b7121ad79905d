#!/usr/bin/env bash
# Times forward passes, draft levels and one image by `ar` and by `adt`, with Anole's architecture
# and random weights.
# Variables: PY interpreter; SCALE divides the widths (1: 7 B weights, 15 GB on disk; 8: for a
# CPU); DTYPE; WORK folder of the weights; METHODS of the image: "ar,adt" on a CPU, where verifying
# a tree of 58 nodes costs too much.
set -euo pipefail
cd "$(dirname "$0")/.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
SCALE=${SCALE:-1}
DTYPE=${DTYPE:-bf16}
METHODS=${METHODS:-ar,adt:proposal=topk:nodes=58}
WORK=${WORK:-work/random_anole_$SCALE}
[ -f "$WORK/tokenizer/text_tokenizer.json" ] ||
  "$PY" -m scripts.tools.random_checkpoint --scale "$SCALE" --output "$WORK"
"$PY" -m scripts.tools.bench_forward --model anole --model_path "$WORK" --dtype "$DTYPE"
"$PY" main.py benchmark --model anole --model_path "$WORK" --dtype "$DTYPE" \
  --prompt "a red fox in the snow" --methods "$METHODS" --top_k 2000 --repeats 1 --warmup 0
