#!/usr/bin/env bash
# Anole on the MS-COCO 2017 validation captions; variables: see run.sh.
exec bash "$(dirname "$0")/run.sh" anole MSCOCO2017Val
