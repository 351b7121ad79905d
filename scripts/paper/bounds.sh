#!/usr/bin/env bash
# The bounds of depth and width; ablation.sh tells its variables.
exec bash "$(dirname "$0")/ablation.sh" bounds
