#!/usr/bin/env bash
# The window of drafts without a drafter; variables: see ablation.sh.
exec bash "$(dirname "$0")/ablation.sh" window
