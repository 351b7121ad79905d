#!/usr/bin/env bash
# What adapts the trees: the acceptance, or controls; ablation.sh tells its variables.
exec bash "$(dirname "$0")/ablation.sh" adapt
