#!/usr/bin/env bash
# Path scores with and without calibration; variables: see ablation.sh.
exec bash "$(dirname "$0")/ablation.sh" calibration
