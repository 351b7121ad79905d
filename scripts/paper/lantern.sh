#!/usr/bin/env bash
# Relaxed acceptance, speed against quality; variables: see ablation.sh.
exec bash "$(dirname "$0")/ablation.sh" lantern
