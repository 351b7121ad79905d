#!/usr/bin/env bash
# The threshold beta; variables: see ablation.sh.
exec bash "$(dirname "$0")/ablation.sh" beta
