#!/usr/bin/env bash
# LlamaGen stage I (256 x 256) on the MS-COCO 2017 validation captions; variables: see run.sh.
exec bash "$(dirname "$0")/run.sh" llamagen MSCOCO2017Val
