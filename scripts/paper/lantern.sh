#!/usr/bin/env bash
# Relaxed acceptance, speed against quality; ablation.sh tells its variables.
exec bash "$(dirname "$0")/ablation.sh" lantern
