#!/usr/bin/env bash
# Lumina-mGPT on PartiPrompts; run.sh tells its variables.
exec bash "$(dirname "$0")/run.sh" lumina_mgpt PartiPrompts
