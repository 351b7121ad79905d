#!/usr/bin/env bash
# Janus-Pro 7B (384 x 384) on the MS-COCO 2017 validation captions; variables: see run.sh.
# No drafter is published for it: DRAFTER names your own, from `main.py train_drafter`, and
# METHODS="ar jacobi" needs none.
exec bash "$(dirname "$0")/run.sh" janus_pro MSCOCO2017Val
