#!/usr/bin/env bash
# Anole on PartiPrompts; variables: see run.sh.
exec bash "$(dirname "$0")/run.sh" anole PartiPrompts
