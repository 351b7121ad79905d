#!/usr/bin/env bash
# LlamaGen stage II (512 x 512) on the MS-COCO 2017 validation captions; variables: see run.sh.
exec bash "$(dirname "$0")/run.sh" llamagen2 MSCOCO2017Val
