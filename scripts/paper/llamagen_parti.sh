#!/usr/bin/env bash
# LlamaGen stage I (256 x 256) on PartiPrompts; run.sh tells its variables.
exec bash "$(dirname "$0")/run.sh" llamagen PartiPrompts
