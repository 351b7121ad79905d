#!/usr/bin/env bash
# The threshold beta; ablation.sh tells its variables.
exec bash "$(dirname "$0")/ablation.sh" beta
