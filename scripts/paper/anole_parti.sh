#!/usr/bin/env bash
# Anole on PartiPrompts; run.sh tells its variables.
exec bash "$(dirname "$0")/run.sh" anole PartiPrompts
