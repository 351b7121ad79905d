#!/usr/bin/env bash
# Which tree the next one starts from: horizontal, vertical, random, fixed; variables: see
# ablation.sh.
exec bash "$(dirname "$0")/ablation.sh" init
