#!/usr/bin/env bash
# Anole on the MS-COCO 2017 validation captions; run.sh tells its variables.
exec bash "$(dirname "$0")/run.sh" anole MSCOCO2017Val
