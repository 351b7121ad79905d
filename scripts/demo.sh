#!/usr/bin/env bash
# Two prompts by plain decoding and by the fastest lossless method with the same seeds, on a contact
# sheet; a table of these two and ADT-Tree.
# Variables: PY interpreter; OUT folder.
set -euo pipefail
cd "$(dirname "$0")/.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
OUT=${OUT:-outputs/demo}
PROMPTS=scripts/demo_prompts.txt
FASTEST=jacobi # the fastest lossless method of docs/results/speed.md; named here only

for method in ar $FASTEST; do
  "$PY" main.py generate_images --model tiny --prompt $PROMPTS --method $method --seed 0 \
    --output_dir "$OUT/$method" --overwrite
done
"$PY" -m scripts.tools.contact_sheet --runs "$OUT/ar,$OUT/$FASTEST" --output "$OUT/grid.png"
# The last line, all figures in JSON, is in benchmark.json too.
"$PY" main.py benchmark --model tiny --prompt $PROMPTS --seed 0 --methods ar,adt,$FASTEST \
  --output_dir "$OUT" | tee "$OUT/benchmark.txt" | sed '/^{"rows"/d'
echo "Next: open $OUT/grid.png (above plain decoding, below $FASTEST: the same images); \`source .venv/bin/activate\`, then" \
  "\`python main.py demo\` draws in your browser; a model of your own: docs/models.md"
