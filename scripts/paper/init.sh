#!/usr/bin/env bash
# The tree that the next one starts from: horizontal, vertical, random, fixed; ablation.sh tells its variables.
exec bash "$(dirname "$0")/ablation.sh" init
