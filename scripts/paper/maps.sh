#!/usr/bin/env bash
# Maps of acceptance and of the target's certainty over the image, and how they correlate with
# their neighbours (scripts/tools/maps.py): for trees that never change, which show the target
# alone, and for ADT-Tree, whose trees depend on the neighbours.
# Variables: PY interpreter; OUT folder; RECIPE of the model; PROMPTS file; IMAGES of them;
# METHODS; FLAGS further flags of main.py.
set -euo pipefail
cd "$(dirname "$0")/../.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
OUT=${OUT:-outputs/paper/maps}
read -ra flags <<<"${FLAGS:-}"
for method in ${METHODS:-eagle2 adt}; do
  "$PY" main.py generate_images --config "configs/${RECIPE:-tiny}.yaml" --method "$method" --trace \
    --prompt "${PROMPTS:-configs/prompts/tiny_test.txt}" --num_images "${IMAGES:-32}" \
    --output_dir "$OUT/$method" "${flags[@]}"
  "$PY" -m scripts.tools.maps --run "$OUT/$method"
done
