#!/usr/bin/env bash
# Trees that never change, at the budgets of ADT-Tree; variables: see ablation.sh.
exec bash "$(dirname "$0")/ablation.sh" trees
