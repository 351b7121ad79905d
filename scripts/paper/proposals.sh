#!/usr/bin/env bash
# Children by the drafter alone or with the image's noise; ablation.sh tells its variables.
exec bash "$(dirname "$0")/ablation.sh" proposals
