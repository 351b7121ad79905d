#!/usr/bin/env bash
# Makes ckpts/tiny from nothing: renders scenes, trains the VQGAN, encodes the scenes, trains the
# VQGAN's decoder further, trains the transformer, generates images with it, and trains the EAGLE
# head on these. Trainings continue where they stopped, and what other steps have finished stays.
# About seven hours on two CPU cores.
# With PICTURES, a folder of captioned pictures, it makes a model of them instead.
# Variables: PY interpreter; WORK folder; MODEL folder of the result; PROCESSES that train decoder
# and transformer: one per core, or a single one with a GPU; PICTURES; HOLDOUT pictures that are
# used for validation only; COUNT crops to train on; START folder of a model that a model of
# PICTURES begins with, such as ckpts/tiny; minutes of each training: VQGAN_MINUTES, DECODER_MINUTES, MODEL_MINUTES.
set -euo pipefail
cd "$(dirname "$0")/.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
PICTURES=${PICTURES:-}
WORK=${WORK:-work/$([ "$PICTURES" ] && echo pictures || echo tiny)}
MODEL=${MODEL:-$([ "$PICTURES" ] && echo "$WORK/model" || echo ckpts/tiny)}
PROCESSES=${PROCESSES:-2}
START=${START:-}
[ -z "$START" ] || [ "$PICTURES" ] || { echo "error: START: expected PICTURES with it, got none" >&2; exit 1; }

splits="train:60000 validation:2000 test:2000" crops=()
if [ "$PICTURES" ]; then
  splits="train:${COUNT:-27000} validation:${HOLDOUT:-100}" crops=(--pictures "$PICTURES" --holdout "${HOLDOUT:-100}")
fi
train=(-m scenes.training.train --work_dir "$WORK" --model_dir "$MODEL")
parallel=("$PY" -m torch.distributed.run --nproc_per_node "$PROCESSES" "${train[@]}")

for split in $splits; do
  "$PY" -m scenes.training.images --work_dir "$WORK" --split "${split%:*}" --count "${split#*:}" "${crops[@]}"
done
"$PY" -m scenes.training.make_config --work_dir "$WORK" --model_dir "$MODEL"
"$PY" "${train[@]}" --network vqgan --minutes "${VQGAN_MINUTES:-27}" ${START:+--start_from "$START"}
for split in $splits; do
  "$PY" -m scenes.training.encode --work_dir "$WORK" --split "${split%:*}" --vqgan "$MODEL/tokenizer"
done
"${parallel[@]}" --network decoder --minutes "${DECODER_MINUTES:-25}"
"${parallel[@]}" --network model --minutes "${MODEL_MINUTES:-270}" ${START:+--start_from "$START"}
"$PY" main.py vq_distances --model tiny --model_path "$MODEL"

[ "$PICTURES" ] || "$PY" "${train[@]}" --network attributes --minutes 5 # 2,400 steps on one CPU core

"$PY" main.py extract_tokens --model tiny --model_path "$MODEL" --from_prompts --num_images 4000 --batch_size 16 \
  --prompt "$WORK/prompts_train.txt" --method ar --output_dir "$WORK/own"
drafter=("$PY" main.py train_drafter --config configs/training/tiny.yaml --model_path "$MODEL" --tokens "\"${WORK//\"/\"\"}/own\""
  --cache_features "$WORK/features" --agreement overlap)
# first one level, in which updates take a third of the time, then four
"${drafter[@]}" --layers 2 --target_layers 10,12,14 --depths 1 --lr 1.5e-3 --output_dir "$WORK/drafter_level"
"${drafter[@]}" --start_from "$WORK/drafter_level/drafter" --steps 400 --lr 3.0e-4 --output_dir "$WORK/drafter"
mkdir -p "$MODEL/drafter"
cp "$WORK"/drafter/drafter/* "$MODEL/drafter/"
