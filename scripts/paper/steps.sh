#!/usr/bin/env bash
# The steps of depth and width; variables: see ablation.sh.
exec bash "$(dirname "$0")/ablation.sh" steps
