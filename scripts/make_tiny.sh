#!/usr/bin/env bash
# Makes ckpts/tiny from nothing: renders scenes, trains the VQGAN, encodes the scenes, trains the
# VQGAN's decoder further, trains the transformer, generates images with it, and trains the EAGLE
# head on these and on rendered ones. Every step continues where it stopped. About seven hours on
# two CPU cores.
# Variables: PY interpreter; WORK folder; MODEL folder of the result; PROCESSES that train decoder
# and transformer: one per core, or a single one with a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}
WORK=${WORK:-work/tiny}
MODEL=${MODEL:-ckpts/tiny}
PROCESSES=${PROCESSES:-2}

for split in train:60000 validation:2000 test:2000; do
  "$PY" -m scripts.tiny.render --work_dir "$WORK" --split "${split%:*}" --count "${split#*:}"
done
"$PY" -m scripts.tiny.make_tokenizer --work_dir "$WORK" --output_dir "$MODEL/tokenizer"
"$PY" -m scripts.tiny.make_config --model_dir "$MODEL"
"$PY" -m scripts.tiny.train_vqgan --work_dir "$WORK" --output "$MODEL/tokenizer"
for split in train validation test; do
  "$PY" -m scripts.tiny.encode --work_dir "$WORK" --split "$split" --vqgan "$MODEL/tokenizer"
done
"$PY" -m torch.distributed.run --nproc_per_node "$PROCESSES" -m scripts.tiny.train_decoder \
  --work_dir "$WORK" --tokenizer "$MODEL/tokenizer" --output "$MODEL/tokenizer" --minutes 25
"$PY" -m scripts.tiny.make_table --model_dir "$MODEL"
"$PY" -m scripts.tiny.train_attributes --work_dir "$WORK" --output "$MODEL/attributes.safetensors"
"$PY" -m torch.distributed.run --nproc_per_node "$PROCESSES" -m scripts.tiny.train_model \
  --work_dir "$WORK" --model_dir "$MODEL" --minutes 270
"$PY" main.py extract_tokens --model tiny --model_path "$MODEL" --from_prompts --num_images 2000 --batch_size 16 \
  --method ar --output_dir "$WORK/own"
"$PY" -m scenes.pictures --count 8000 --output_dir "$WORK/scenes"
"$PY" main.py extract_tokens --model tiny --model_path "$MODEL" --data_dir "$WORK/scenes" --output_dir "$WORK/real"
train=("$PY" main.py train_drafter --config configs/training/tiny.yaml --model_path "$MODEL" --tokens "$WORK/own,$WORK/real"
  --cache_features "$WORK/features" --agreement overlap)
# first one level, in which updates take half the time, then two
"${train[@]}" --layers 2 --target_layers 10,12,14 --depths 1 --lr 1.5e-3 --output_dir "$WORK/drafter_level"
"${train[@]}" --start_from "$WORK/drafter_level/drafter" --steps 400 --lr 3.0e-4 --output_dir "$WORK/drafter"
mkdir -p "$MODEL/drafter"
cp "$WORK"/drafter/drafter/* "$MODEL/drafter/"
