#!/usr/bin/env bash
# The shipped model on its test prompts; variables: see run.sh.
exec bash "$(dirname "$0")/run.sh" tiny configs/prompts/tiny_test.txt
