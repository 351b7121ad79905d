#!/usr/bin/env bash
# Lumina-mGPT on PartiPrompts; variables: see run.sh.
exec bash "$(dirname "$0")/run.sh" lumina_mgpt PartiPrompts
