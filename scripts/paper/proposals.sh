#!/usr/bin/env bash
# Children by the drafter alone or with the image's noise; variables: see ablation.sh.
exec bash "$(dirname "$0")/ablation.sh" proposals
