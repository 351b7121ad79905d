#!/usr/bin/env bash
# An image's first tree; variables: see ablation.sh.
exec bash "$(dirname "$0")/ablation.sh" first
