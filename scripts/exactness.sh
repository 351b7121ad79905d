#!/usr/bin/env bash
# Checks every method against plain decoding: 20 prompts x 2 seeds, T = 0 and 1, with and without
# top-k and top-p, guidance scales 1 and 3, batches of 1 and 3. First in fp64, where every
# difference is an error, then in fp32, where near-ties are counted. Takes a day on two cores and
# continues where it stopped. With --thin it takes two hours: every cell then decodes one batch
# and one image more, and the cells of a distribution together decode every prompt and seed. `make
# test` checks a few cells.
# Variables: PY interpreter; OUT folder of the reports. Arguments go to both checks.
set -euo pipefail
cd "$(dirname "$0")/.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
OUT=${OUT:-outputs/exactness}
for dtype in fp64 fp32; do
  "$PY" -m scripts.tools.check_exactness --cells full --prompts 20 --seeds 2 --dtype $dtype \
    --report "$OUT/$dtype.jsonl" "$@"
done
