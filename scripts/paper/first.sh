#!/usr/bin/env bash
# The tree that an image begins with; ablation.sh tells its variables.
exec bash "$(dirname "$0")/ablation.sh" first
