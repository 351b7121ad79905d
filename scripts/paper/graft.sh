#!/usr/bin/env bash
# Grafted drafts by depth and window, and their parts alone; variables: see ablation.sh.
exec bash "$(dirname "$0")/ablation.sh" graft
