#!/usr/bin/env bash
# Four prompts by ADT-Tree and by plain decoding with the same seeds; a contact sheet and a table.
# Variables: PY interpreter; OUT folder.
set -euo pipefail
cd "$(dirname "$0")/.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
OUT=${OUT:-outputs/demo}
PROMPTS=scripts/demo_prompts.txt

for method in ar adt; do
  "$PY" main.py generate_images --model tiny --prompt $PROMPTS --method $method --seed 0 \
    --output_dir "$OUT/$method" --overwrite
done
"$PY" -m scripts.tools.contact_sheet --runs "$OUT/ar,$OUT/adt" --output "$OUT/grid.png"
"$PY" main.py benchmark --model tiny --prompt $PROMPTS --seed 0 \
  --methods ar,eagle2:proposal=topk,eagle2,adt:proposal=topk,adt \
  --repeats 1 --output_dir "$OUT" | tee "$OUT/benchmark.txt"
