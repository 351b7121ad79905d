#!/usr/bin/env bash
# Grafted drafts by depth and window, beside their parts.
exec bash "$(dirname "$0")/ablation.sh" graft
