#!/usr/bin/env bash
# What adapts the trees: acceptance, or controls; variables: see ablation.sh.
exec bash "$(dirname "$0")/ablation.sh" adapt
