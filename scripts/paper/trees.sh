#!/usr/bin/env bash
# Trees that never change, at the budgets of ADT-Tree; ablation.sh tells its variables.
exec bash "$(dirname "$0")/ablation.sh" trees
