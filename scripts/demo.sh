#!/usr/bin/env bash
# Tries some lossless methods for a quarter of a minute, then generates two images by plain decoding
# and by the fastest of them, with the same seeds, and shows both in a report. Where plain decoding
# is the fastest, which a line says, the others are by jacobi.
# Variables: PY interpreter; OUT folder.
set -euo pipefail
cd "$(dirname "$0")/.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
OUT=${OUT:-outputs/demo}
PROMPTS=scripts/demo_prompts.txt

"$PY" main.py tune --model tiny --dtype fp32 --prompt $PROMPTS --seed 0 --minutes 0.25 --output "$OUT/tuned.yaml" \
  --methods jacobi:window=10,adt,block:nodes=16:depth=16:width=3,jacobi:window=6
FAST=(--config "$OUT/tuned.yaml")
grep -q '^method: ar$' "$OUT/tuned.yaml" && FAST=(--method jacobi)

"$PY" main.py generate_images --model tiny --dtype fp32 --prompt $PROMPTS --method ar --seed 0 \
  --output_dir "$OUT/ar" --overwrite
"$PY" main.py generate_images --model tiny --dtype fp32 --prompt $PROMPTS "${FAST[@]}" --seed 0 \
  --output_dir "$OUT/fast" --overwrite
# its table would be the second one
"$PY" main.py evaluate --output_dir "$OUT/ar,$OUT/fast" --metrics none --report_dir "$OUT/report" >/dev/null
echo "Next: open $OUT/report/report.html (plain decoding next to the drafts: the same images); \`source .venv/bin/activate\`, then" \
  "\`python main.py demo\` serves a page for your browser; a model of your own: docs/models.md"
