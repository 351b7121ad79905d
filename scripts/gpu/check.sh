#!/usr/bin/env bash
# Checks correctness and speed on a CUDA machine, in parts, the most important first: tokens against
# the CPU's, passes of a 7B target with random weights, every method on the shipped model, profiles.
# Needs no network and no weights but ckpts/tiny; continues where it stopped. Hours on one GPU.
# Variables: PY interpreter. Arguments go to scripts/gpu/check.py: --parts, --output, --device,
# --small (a try on a CPU), --model_path.
set -euo pipefail
cd "$(dirname "$0")/../.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
"$PY" -m scripts.gpu.check "$@"
