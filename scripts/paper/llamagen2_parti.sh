#!/usr/bin/env bash
# LlamaGen stage II (512 x 512) on PartiPrompts; variables: see run.sh.
exec bash "$(dirname "$0")/run.sh" llamagen2 PartiPrompts
