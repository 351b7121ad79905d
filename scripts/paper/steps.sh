#!/usr/bin/env bash
# The steps of depth and width; ablation.sh tells its variables.
exec bash "$(dirname "$0")/ablation.sh" steps
