#!/usr/bin/env bash
# The sweeps behind ADT-Tree's defaults on the shipped model: this machine's costs, then counts on six validation prompts
# at T = 1 and T = 0, and pictures. Three quarters of an hour on two cores; continues where it was stopped.
# Variables: OUT folder; SWEEPS of configs/sweeps; FLAGS further flags of main.py, such as "--proposal topk"; those that
# paper/ablation.sh tells.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${OUT:-outputs/sweeps/tiny}
costs=$folder/costs.json
mkdir -p "$folder"
[ -f "$costs" ] || "${PY:-python}" -m scripts.tools.costs --output "$costs"
for sweep in ${SWEEPS:-nodes bounds beta steps first init adapt trees}; do
  OUT=$folder/$sweep IMAGES=${IMAGES:-6} FLAGS="--costs $costs ${FLAGS:-}" bash scripts/paper/ablation.sh "$sweep"
done
