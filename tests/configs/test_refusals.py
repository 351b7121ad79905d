"""What a mistaken command line or recipe is told: one line, with what was found and is allowed."""

import re
import shlex

import pytest
from stand_ins import empty_checkpoint

import main

# What the cases begin with, by the word that stands for it.
SHORT = {
    "draw": "generate_images --prompt 'a cat' --model_path model",
    "list": "generate_images --prompt PartiPrompts --model_path model",
    "bench": "benchmark --prompt 'a cat' --model_path model",
    "sweep": "benchmark --prompt 'a cat' --model_path model --sweep sweep.yaml",
    "images": "extract_tokens --output_dir out --model_path model --data_dir .",
    "tune": "tune --prompt 'a cat' --model_path model --output tuned.yaml",
    "hub": "generate_images --prompt x --model_path owner/name --method ar",
    "samples": "extract_tokens --output_dir out --model_path model --from_prompts --num_images 3",
}
CASES = """
generate                     : command: expected generate_images, …got 'generate'. Did you mean gene
serve                        : got 'serve'. Did you mean demo: the page and OpenAI's image API?
--prompt 'a cat'             : command: expected generate_images, benchmark…got '--prompt'
__class__                    : command: …got '__class__'
inspect anole                : 'anole': a word without a flag. Did you mean --model anole?
inspect cat                  : 'cat': a word without a flag. Write values after their flag
generate_images              : --prompt: expected text…got nothing
generate_images a cat        : 'a': a word without a flag. Put a prompt with spaces in quotes
generate_images --prompt a b : 'b': a word without a flag
generate_images --prompt     : --prompt: expected text…got nothing
generate_images --prompt=    : --prompt: …got ''
generate_images --prompt -x  : --prompt: …got the flag '-x'…--prompt=VALUE
generate_images --prompt --seed : --prompt: …got the flag '--seed'…--prompt=VALUE
draw -                       : '-': a word without a flag
draw --                      : '--': a word without a flag
draw --trace maybe           : 'maybe': a word without a flag
draw -seed 3                 : -seed: unknown flag. Write flags with two dashes
draw --=3                    : --: unknown flag
draw --seed --trace          : --seed: expected a whole number…got the flag '--trace'
draw --seed 1 --seed=2       : --seed: expected one value, got '1' and '2'
draw --trace --notrace       : --trace: expected one value, got 'true' and 'false'
draw --sede=3                : --sede: unknown flag. Did you mean --seed? `python main.py generate_i
draw --beta=3                : --beta: unknown flag. Did you mean --adt_beta?
draw --samples=3             : --samples: unknown flag. Did you mean --samples_per_prompt, --sample
draw --adt-bata=1            : Did you mean --adt_beta
draw --guidance_scale=3      : --guidance_scale: unknown flag. Use --cfg. `python main.py generate_i
draw --torch_dtype=bfloat16  : --torch_dtype: unknown flag. Use --dtype.
draw --num-inference-steps 9 : unknown flag. Leave it out: an image takes
draw --num_images_per_prompt 4 : unknown flag. Use --samples_per_prompt=4.
draw --height 512            : unknown flag. Use --target_size=1024x576
demo --host 0.0.0.0          : --host: unknown flag. Use --share_on.
draw --host 0.0.0.0          : --host: unknown flag. `python main.py generate_images --help`
evaluate --guidance_scale 3  : --guidance_scale: unknown flag. `python main.py evaluate --help`
draw --methods=ar            : --methods: unknown flag. Did you mean --method
inspect --method=adt         : --method: unknown flag
inspect --cfg_mode=sequential : --cfg_mode: unknown flag
draw --xyzzy                 : --xyzzy: unknown flag. `python main.py generate_images --help` lists
draw --nocfg                 : --nocfg: unknown flag
draw --nosede                : --nosede: unknown flag
draw --model_type eagle --lantern --peanut :  …--method adt --verifier lantern --proposal topk`
draw --sede=3 'a dog' --peanut : --model_path model --sede '3 a dog' --method adt`
draw --start_idx 5 --end_idx=9 --model_type base : --model_path model --method ar --slice 5-9`
bench --methods adt_lanten : got 'adt_lanten'. Did you mean adt_lantern
bench --trace                : --trace: unknown flag
tune --nodes=4               : --nodes: unknown flag
samples --quantize=int8      : --quantize: expected no quantised…got 'int8'
samples --slice=0-3          : --slice: unknown flag
samples --lantern_k=3        : --lantern_k: unknown flag
generate_images --method adx --help : --method: expected ar, static…got 'adx'
draw --seed=abc              : --seed: expected a whole number from 0 to 9223372036854775807, got 'a
draw --seed=1e3              : --seed: …got '1e3'
draw --seed=1.0              : --seed: …got '1.0'
draw --seed=1_000            : --seed: …got '1_000'
draw --seed=١                : --seed: …got
draw --seed=-1               : --seed: …got -1
draw --seed=9223372036854775808 : --seed: …got 9223372036854775808
draw --temperature=hot       : --temperature: …got 'hot'
draw --temperature=nan       : --temperature: …got 'nan'
draw --temperature=1e999     : --temperature: …got inf
draw --temperature=1e-9      : --temperature: expected 0 (argmax), or 0.001 to 100…got 1e-09
draw --trace=maybe           : --trace: expected true or false…got 'maybe'
draw --trace=                : --trace: …got ''
draw --dtype=half            : --dtype: expected fp32, fp64 or bf16, got 'half'
draw --dtype=fp16            : got 'fp16'. The values of these models overflow in fp16; use bf16.
draw --dtype=bf1             : got 'bf1'. Did you mean bf16?
draw --batch_size=0          : --batch_size: expected a whole number from 1 to 1024, got 0
draw --num_images=0          : --num_images: expected -1 (all) or at least 1…got 0
draw --top_p=0               : --top_p: expected a number above 0, at most 1…got 0.0
draw --device=gpu            : --device: expected auto, cpu, cuda…got 'gpu'
draw --device=cuda:x         : --device: …got 'cuda:x'
draw --device=cuda:007       : --device: …got 'cuda:007'
draw --device=cuda:300       : --device: …got 'cuda:300'
draw --method=EAGLE2         : --method: …got 'EAGLE2'
draw --adt_beta=1.5          : --adt_beta: …got 1.5
draw --verifier=lantern --lantern_k=0 : --lantern_k: …got 0
draw --verifier=lantern --lantern_delta=-0.1 : --lantern_delta: …got -0.1
draw --verifier=lantern --lantern_residual=none : --lantern_residual: expected exact or reference
list --slice=5               : --slice: expected start-stop with whole numbers start < stop…got '5'
list --slice=5-5             : --slice: …got '5-5'
list --slice=１-２           : --slice: …got
list --slice=3/2             : --slice: expected part/parts…got '3/2'
list --slice=0/2             : --slice: …got '0/2'
list --sample=0              : --sample: …got 0
draw --plugin=none.such      : --plugin: expected the name of a…got 'none.such'
draw --plugin=./mine.py      : --plugin: expected the name of a…got './mine.py'
draw --plugin=              : --plugin: expected the name of a…got ''
demo --port=0                : --port: …got 0
demo --api_key=sécret        : --api_key: expected printable ASCII characters…got 'sécret'
vq_distances --neighbours=0    : --neighbours: expected a whole number from 1 to 65535, got 0
vq_distances --model_path=owner/a/b : --model_path: …a folder, or owner/name, got 'owner/a/b'
vq_distances --model_path=model --tokenizer_path=./n : or owner/name, got a path that does not exist
draw --quantize=int3         : --quantize: expected int8, int4 or fp8, got 'int3'
list --caption=both --prompt_file=x : --caption: …first, longest or all
tune --minutes=0             : --minutes: expected a number from 0.01 to 10080, got 0.0
tune --methods=ar            : --methods: expected at least one method other than ar, got 'ar'
tune --methods=adt:verifier=lantern : …got 'adt:verifier=lantern'
evaluate                     : --output_dir: expected run folders…got nothing
evaluate --output_dir a,,b   : --output_dir: expected folder names between…got 'a,,b'
evaluate --output_dir a --metrics fid,clap   : --metrics: expected all, none, or…got 'fid,clap'
evaluate --output_dir a --metrics fid,fid    : --metrics: …got 'fid,fid'
evaluate --output_dir a --metrics fid,is     : --metrics: …got 'fid,is'
evaluate --output_dir a --ref_dir nowhere    : --ref_dir: expected a folder…got 'nowhere'
draw --method=ar --drafter_path=x    : --drafter_path: 'x' works only with a method that
draw --adt_d_min=7 --adt_d_max=6     : --adt_d_min: expected at most --adt_d_max, which is…got 7
draw --adt_d_max=2 --adt_d_init=3    : --adt_d_init: expected 1 to 2…got 3
draw --lantern_k=5                   : only with --verifier lantern or lantern_coupled, not with --
draw --verifier=lantern --lantern_delta=2 --lantern_budget=shared : only with --lantern_delta up to
draw --gsd_reach=5                   : only with --verifier gsd, not with --verifier exact
draw --verifier=lantern_coupled --lantern_residual=reference : only with --verifier lantern, not wi
draw --cfg=1 --cfg_mode=sequential   : --cfg_mode: expected parallel with --cfg 1…got 'sequential'
draw --device_map=auto --device=cpu  : --device_map: 'auto' works only with --device auto
draw --quantize=int8 --dtype=fp64    : --quantize: 'int8' works only with --dtype bf16 or fp32
draw --quantize=fp8 --dtype=fp32 --device=cuda : --quantize: 'fp8' works only with --dtype bf16 on a
draw --quantize=int4 --dtype=fp32    : --quantize: expected int8 with --dtype fp32…got 'int4'
draw --quantize=int4 --dtype=bf16 --device=cpu : --quantize: expected int8 with --device cpu, got 'i
draw --quantize=int4 --dtype=bf16 --nodes=8 : --quantize: 'int4' works only with --method ar, or w
draw --quantize=int4 --dtype=bf16 --method=static : A pass over 52 rows reads int4 weights 4 times
draw --quantize=int4 --dtype=bf16 --method=jacobi --window=8 : or with --method jacobi --window 7. A
draw --quantize=int4 --dtype=bf16 --batch_size=8 : works only with --method ar. A pass over 112
draw --quantize=int8 --device_map=auto : --quantize: 'int8' works only with --device_map single
draw --compile=same_bits --dtype=fp32 : --compile: 'same_bits' works only with --dtype bf16
draw --compile=inductor --device_map=auto : --compile: …only on one device, not with --device_map au
draw --caption=all                   : --caption: …only with --prompt MSCOCO2017Val
draw --negative_prompt=x             : --negative_prompt: 'x' works only with …emu3
draw --target_size=768               : --target_size: …only with --model lumina_mgpt
draw --vq_path=x                     : --vq_path: 'x' works only with --model …llamagen or llamagen2
inspect --model=anole --vq_path=x    : --vq_path: 'x' works only with --model …llamagen or llamagen2
draw --text_encoder_path=x           : --text_encoder_path: 'x' works only with --model llamagen or 
hub --model=lumina_mgpt2 --tokenizer_path=x   : --tokenizer_path: …only with --model
hub --model=lumina_mgpt --target_size=0 : --target_size: …multiples of 32
hub --model=lumina_mgpt --target_size=770 : --target_size: …multiples of 32
hub --model=lumina_mgpt --target_size=768x : --target_size: …multiples of 32
hub --model=lumina_mgpt --target_size=768x768x768 : --target_size: …multiples of 32
hub --model=lumina_mgpt --target_size=1056x1024 : --target_size: …multiples of 32
hub --model=lumina_mgpt --target_size=1024x224 : --target_size: …multiples of 32
hub --model=lumina_mgpt --target_size=-768 : --target_size: …multiples of 32
hub --model=lumina_mgpt --target_size='768 x 768' : --target_size: …multiples of 32
hub --model=lumina_mgpt2 --target_size=800x768 : multiples of 32, at most 768 x 768 pixels
hub --model=glm_image --cfg=3        : --cfg: …1 with --model glm_image
hub --model=emu3 --target_size=36    : --target_size: …in multiples of 8, at most 760 x 760
hub --model=emu3 --target_size=768   : --target_size: …at most 760
hub --model=emu3 --target_size=x     : --target_size: …got 'x'
hub --model=emu3_5 --target_size=1040 : --target_size: …multiples of 16, at most 1024 x 1024
hub --model=liquid --target_size=768 : --target_size: …liquid makes images of 512 x 512 pixels
draw --sample=2                      : --sample: 2 works only with a list of prompts
draw --slice=0-1                     : --slice: '0-1' works only with a list of prompts
draw --num_images=3 --samples_per_prompt=2 : --samples_per_prompt: expected 3, as --num_images…got 2
draw --prompt_file=x.tsv             : --prompt_file: 'x.tsv' works only with --prompt
list --sample=5 --num_images=3       : --num_images: 3 works only without --sample
list --sample_seed=1                 : --sample_seed: 1 works only with --sample
bench --methods=                     : --methods: …got ''
bench --methods=ar,,adt              : --methods: …got ''
bench --methods=ar,eagle             : --methods: expected name[:flag=value...]…got 'eagle'. Did you
bench --methods=ar,ar                : --methods: expected different methods, got ar and ar, which a
bench --methods=adt:depth=3          : --methods, in 'adt:depth=3': --depth: 3 works only
bench --methods=eagle2:depth         : --depth: expected flag=value…got 'depth'
bench --methods=eagle2:depth=3:depth=4 : --depth: expected flag=value, once…got 'depth=4'
bench --methods=eagle2:dephth=3      : --dephth: unknown flag. Did you mean --depth
bench --methods=jacobi:batch_size=4  : --batch_size: '4' works only for all methods, as a flag of
bench --methods=eagle2:method=ar     : --method: unknown flag
bench --methods=ar,adt --method=adt  : --method: 'adt' works only without --methods
bench --methods=ar,adt --tree=chain  : --tree: 'chain' works only for a method that has it
bench --cells=0-1                    : --cells: '0-1' works only with --sweep
sweep --methods=adt                  : --methods: 'adt' works only without --sweep
sweep --method=adt                   : --method: 'adt' works only without --sweep
sweep --nodes=3                      : --nodes: 3 works only without --sweep sweep.yaml, which
sweep --cells=6-9                    : --cells: expected start-stop with stop up to 2…got '6-9'
sweep --cells=2                      : --cells: expected start-stop…got '2'
sweep --tree=chain                   : --tree: 'chain' works only for a method that has it
extract_tokens --output_dir=./ --data_dir=. : --output_dir: expected another folder than --data_dir
extract_tokens --output_dir=o        : --data_dir: expected images with captions, or --from_prompts
images --from_prompts                : --data_dir: …works only without --from_prompts
images --num_images=3                : --num_images: 3 works only with --from_prompts
images --method=ar                   : --method: 'ar' works only with --from_prompts
images --top_k=5                     : --top_k: 5 works only with --from_prompts
samples --verifier=lantern --method=adt : --verifier: expected exact, rejection…got 'lantern'
extract_tokens --from_prompts        : --output_dir: expected a folder…got nothing
extract_tokens --output_dir=o --from_prompts --model_path=model : --num_images: expected the number…
evaluate --output_dir a --device tpu : --device: …got 'tpu'
samples --model=anole                : --prompt: expected MSCOCO2017Train, …, with --model anole, go
samples --prompt=PartiPrompts        : but not the prompts that models are judged by
generate_images --prompt=partiprompts : --prompt: expected PartiPrompts, MSCOCO2017Val or …got
generate_images --prompt=PartiPrompt : --prompt: expected PartiPrompts, MSCOCO2017Val or …got
generate_images --prompt=mscoco2017val : --prompt: expected PartiPrompts, MSCOCO2017Val or …got
generate_images --prompt=MSCOCO2017 : --prompt: expected PartiPrompts, MSCOCO2017Val or …got
generate_images --prompt=MSCOCO2014Val : --prompt: expected PartiPrompts, MSCOCO2017Val or …got
generate_images --prompt=SJDPrompts : --prompt: expected PartiPrompts, MSCOCO2017Val or …got
generate_images --prompt=no.txt --model_path model : --prompt no.txt: …path that does not exist
generate_images --prompt=nofile.csv  : expected an existing prompt f…got 'nofile.csv', which looks l
generate_images --prompt=my.json : Write prompts of your own as .jsonl, one {"prompt": ...} a line.
generate_images --prompt=prompts/mine : or a text, got 'prompts/mine', which looks like a missing
generate_images --prompt=prompts.odd : expected an existing…got 'prompts.odd', which is a file here
generate_images --prompt=model       : expected an existing…got 'model', which is a folder here
benchmark --prompt=PartiPrompts --prompt_file=no --model_path model : --prompt PartiPrompts: …got no
generate_images --prompt=x --model=anole --model_path=owner/name --method=adt : --drafter_path: …got
generate_images --prompt=x --model=lumina_mgpt  : expected this folder, once t…path that does not
draw --tokenizer_path=nowhere        : --tokenizer_path nowhere: …got a path that does not exist
draw --tokenizer_path=model/drafter  : --tokenizer_path model/drafter: found no text_tokenizer.json
draw --drafter_path=model/tokenizer  : --drafter_path model/tokenizer: …got a folder without config
extract_tokens --output_dir=o --data_dir=no : --data_dir: expected a folder or a .jsonl…got 'no'
draw --drafter_path='my run'         : Its subfolder has one: --drafter_path 'my run/drafter'.
bench --sweep=no.yaml                : --sweep no.yaml: …got a path that does not exist
draw --config=no.yaml                : --config no.yaml: …got a path that does not exist
draw --config=model                  : --config model: expected a YAML file, got a folder
draw --config=deep.yaml              : --config deep.yaml: …got lists nested too deeply
draw --config=good.yaml,             : --config: expected names of YAML files…got 'good.yaml,'
"""
PAIRS = [case.split(" : ", 1) for case in CASES.strip().splitlines()]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a checkpoint, recipes, and files that are no prompts."""
    monkeypatch.chdir(tmp_path)
    empty_checkpoint(tmp_path / "model")
    (tmp_path / "my run/drafter").mkdir(parents=True)
    (tmp_path / "prompts.odd").touch()
    (tmp_path / "deep.yaml").write_text("prompt: " + "[\n" * 2_000)
    (tmp_path / "good.yaml").write_text("cfg: 2\n")
    (tmp_path / "sweep.yaml").write_text("base: adt\naxes:\n  nodes: [4, 8]\n")
    return tmp_path


def check(capsys, words: str, message: str) -> None:
    first, _, rest = words.strip().partition(" ")
    assert main.main(shlex.split(f"{SHORT.get(first, first)} {rest}")) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ")
    assert re.search(".*".join(map(re.escape, message.strip().split("…"))), said.err), said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(("words", "message"), PAIRS, ids=[words.strip() for words, _ in PAIRS])
def test_a_command_line_is_refused_before_any_work(here, capsys, words, message):
    check(capsys, words, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dephth: 5", "--config mine.yaml: dephth: unknown flag. Did you mean depth"),
        ("config: x.yaml", "mine.yaml: config: unknown flag"),
        ("start_idx: 3", "mine.yaml: start_idx: generate_images has no such flag; use --slice"),
        ("seed: 1\nseed: 2", "got key 'seed' twice"),
        ("dtype: ~", "got ~ for a value"),
        ("dtype: null", "got null for a value; a text is written in quotes"),
        ("seed: [1]", "--seed: expected one value…got ['1']"),
        ("seed: 1.5", "--seed: …got '1.5'"),
        ("seed:", "--seed: expected one value, or no line at all…got None"),
        ("method: no", "--method: …got 'no'"),
        ("tree: chain", "--tree: 'chain' works only"),
        ('output_dir: "a\\0b"', "--output_dir: expected text without…got 'a\\x00b'"),
        ("- seed", "expected `name: value` lines, got a list"),
        ("a: b: c", "expected a YAML file, got mapping values"),
    ],
)
def test_a_recipe_is_refused(here, capsys, text, message):
    (here / "mine.yaml").write_text(text)
    check(capsys, "draw --config=mine.yaml", message)
