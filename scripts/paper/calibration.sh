#!/usr/bin/env bash
# Path scores with and without calibration; ablation.sh tells its variables.
exec bash "$(dirname "$0")/ablation.sh" calibration
