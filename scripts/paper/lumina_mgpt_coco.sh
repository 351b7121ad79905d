#!/usr/bin/env bash
# Lumina-mGPT on the MS-COCO 2017 validation captions; variables: see run.sh.
exec bash "$(dirname "$0")/run.sh" lumina_mgpt MSCOCO2017Val
