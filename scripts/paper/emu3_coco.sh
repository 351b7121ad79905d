#!/usr/bin/env bash
# Emu3-Gen (720 x 720) on the MS-COCO 2017 validation captions; variables: see run.sh.
# No drafter is published for it: DRAFTER names your own, from `main.py train_drafter`, and
# METHODS="ar jacobi" needs none.
exec bash "$(dirname "$0")/run.sh" emu3 MSCOCO2017Val
