#!/usr/bin/env bash
# LlamaGen stage I (256 x 256) on PartiPrompts; variables: see run.sh.
exec bash "$(dirname "$0")/run.sh" llamagen PartiPrompts
