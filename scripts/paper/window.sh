#!/usr/bin/env bash
# The window of training-free drafts; ablation.sh tells its variables.
exec bash "$(dirname "$0")/ablation.sh" window
