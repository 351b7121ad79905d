#!/usr/bin/env bash
# The shipped model on its test prompts; run.sh tells its variables.
exec bash "$(dirname "$0")/run.sh" tiny configs/prompts/tiny_test.txt
