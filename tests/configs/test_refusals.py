"""What a mistaken command line or recipe is told: one line, with what was found and is allowed."""

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
    "samples": "extract_tokens --output_dir out --model_path model --from_prompts --num_images 3",
}
WORDS = """
generate                     : 'generate': found as first word; did you mean generate_images? allow
--prompt 'a cat'             : '--prompt': found as first word; allowed: generate_images, benchmark
__class__                    : '__class__': found as first word
inspect anole                : 'anole': a word without a flag; did you mean --model anole?
inspect cat                  : 'cat': a word without a flag; values follow their flag
generate_images              : --prompt: missing; allowed: a text
generate_images a cat        : 'a': a word without a flag; a prompt with blanks needs quotes
generate_images --prompt a b : 'b': a word without a flag
generate_images --prompt     : --prompt: found no value; allowed: a text
generate_images --prompt=    : --prompt: found ''
draw -                       : '-': a word without a flag
draw --                      : '--': a word without a flag
draw ''                      : '': a word without a flag
draw --trace maybe           : 'maybe': a word without a flag
draw -seed 3                 : -seed: unknown flag; flags are written with two dashes
draw -1                      : -1: unknown flag
draw --=3                    : --: unknown flag
draw --seed --trace          : --seed: found no value but '--trace'; allowed: a whole number
draw --seed 1 --seed=2       : --seed: found twice, as '1' and '2'; allowed: once
draw --trace --notrace       : --trace: found twice
draw --sede=3                : --sede: unknown flag; did you mean --seed? allowed: those of `python
draw --temprature=1          : did you mean --temperature
draw --adt-bata=1            : did you mean --adt_beta
draw --lantern_detla 0.1     : did you mean --lantern_delta
draw --methods=ar            : --methods: unknown flag; did you mean --method
draw --xyzzy                 : --xyzzy: unknown flag; allowed: those of `python main.py generate_im
draw --nocfg                 : --nocfg: unknown flag
draw --nosede                : --nosede: unknown flag
draw --start_idx=0           : --start_idx: no such flag here; use --slice
draw --eagle_version 2       : --eagle_version: no such flag here; use --method static (1) or --met
bench --trace                : --trace: no such flag here; only generate_images has it
samples --slice=0-3          : --slice: unknown flag
samples --lantern_k=3        : --lantern_k: unknown flag
generate_images --method adx --help : --method: found 'adx'; allowed: ar, static
"""
VALUES = """
draw --seed=abc              : --seed: found 'abc'; allowed: a whole number at least 0
draw --seed=1e3              : --seed: found '1e3'
draw --seed=1.0              : --seed: found '1.0'
draw --seed=0x1              : --seed: found '0x1'
draw --seed=1_000            : --seed: found '1_000'
draw --seed=None             : --seed: found 'None'
draw --seed=١                : --seed: found
draw --seed=-1               : --seed: found -1
draw --seed=9223372036854775808 : --seed: found 9223372036854775808
draw --temperature=hot       : --temperature: found 'hot'
draw --temperature=nan       : --temperature: found 'nan'
draw --temperature=1,5       : --temperature: found '1,5'
draw --temperature=1e999     : --temperature: found inf
draw --temperature=1e-9      : --temperature: found 1e-09; allowed: 0 (argmax), or 0.001 to 100
draw --trace=maybe           : --trace: found 'maybe'; allowed: true or false
draw --trace=                : --trace: found ''
draw --dtype=half            : --dtype: found 'half'; allowed: fp32, fp64, bf16
draw --batch_size=0          : --batch_size: found 0; allowed: a whole number at least 1
draw --num_images=0          : --num_images: found 0; allowed: -1 (all) or at least 1
draw --top_p=0               : --top_p: found 0.0; allowed: a number above 0, at most 1
draw --precision=fp16        : --dtype: found 'fp16'
draw --model_type=vllm       : --model_type: found 'vllm'
draw --set_seed=false        : --set_seed: found False; allowed: true
draw --model=anola           : --model: found 'anola'; allowed: tiny, anole
draw --device=gpu            : --device: found 'gpu'; allowed: auto, cpu, cuda
draw --device=cuda:x         : --device: found 'cuda:x'
draw --verifier=lossy        : --verifier: found 'lossy'; allowed: exact, rejection
draw --tree=mine             : --tree: found 'mine'; allowed: mc_sim_7b_63
draw --method=EAGLE2         : --method: found 'EAGLE2'
draw --adt_beta=1.5          : --adt_beta: found 1.5
draw --lantern --lantern_k=0 : --lantern_k: found 0
draw --lantern --lantern_delta=-0.1      : --lantern_delta: found -0.1
draw --lantern --lantern_residual=none   : --lantern_residual: found 'none'; allowed: exact, refere
list --slice=5               : --slice: found '5'; allowed: a-b with whole numbers a < b
list --slice=5-5             : --slice: found '5-5'
list --slice=0x1-2           : --slice: found '0x1-2'
list --slice=１-２           : --slice: found
list --sample=0              : --sample: found 0
bench --repeats=0            : --repeats: found 0
bench --warmup=-1            : --warmup: found -1
evaluate                     : --output_dir: missing; allowed: run folders
evaluate --output_dir a,,b   : --output_dir: found 'a,,b'; allowed: folder names between
evaluate --output_dir a --metrics fid,clap   : --metrics: found 'fid,clap'; allowed: all, none, or
evaluate --output_dir a --metrics fid,fid    : --metrics: found 'fid,fid'
evaluate --output_dir a --ref_dir nowhere    : --ref_dir: found 'nowhere'; allowed: a folder
"""
COMBINATIONS = """
draw --method=ar --tree=chain        : --tree: found 'chain'; allowed: only with --method static, n
draw --method=ar --proposal=topk     : --proposal: found 'topk'; allowed: only with --method
draw --method=ar --drafter_path=x    : --drafter_path: found 'x'; allowed: only with a method that
draw --method=eagle2 --adt_beta=0.5  : --adt_beta: found 0.5; allowed: only with --method adt, not
draw --method=static --depth=3       : --depth: found 3; allowed: only with --method eagle2
draw --method=static --nodes=3       : --nodes: found 3
draw --width=3                       : --width: found 3
draw --adt_d_min=7 --adt_d_max=6     : --adt_d_min: found 7; allowed: at most --adt_d_max, which is
draw --adt_d_max=2 --adt_d_init=3    : --adt_d_init: found 3; allowed: 1 to 2
draw --lantern_k=5                   : only with --verifier lantern or lantern_coupled, not with --
draw --gsd_reach=5                   : only with --verifier gsd, not with --verifier exact
draw --lantern --gsd_reach=5         : --gsd_reach: found 5; allowed: only with --verifier gsd, not
draw --lantern --lantern_k=5 --gsd_reach=5 : --gsd_reach: found 5; allowed: not together with --lan
draw --lantern --verifier=rejection  : --lantern: found True; allowed: only with --verifier lantern
draw --lantern --method=ar           : --verifier: found 'lantern'; allowed: with --method ar exact
draw --lantern --lantern_delta=2 --lantern_budget=shared : allowed: only with --lantern_delta up to
draw --verifier=lantern_coupled --lantern_residual=reference : only with --verifier lantern, not wi
draw --verifier=sampled --method=static : sampled goes with --proposal sampled and --method static
draw --model_type=base --peanut      : found 'base'; allowed: only with --method ar, not adt
draw --model_type=base --static_tree : only with --method ar, not static
draw --peanut --static_tree          : --static_tree: found True; allowed: only with --method stati
draw --method=ar --peanut            : --peanut: found True; allowed: only with --method adt, not ar
draw --method=ar --model_type=eagle  : --model_type: found 'eagle'; allowed: only with --method eag
draw --seed=1 --random_seed=2        : --random_seed: found 2; allowed: only with --seed 2, not 1
draw --dtype=fp32 --precision=bf16   : --precision: found 'bf16'; allowed: only with --dtype bf16
draw --cfg=1 --cfg_mode=sequential   : --cfg_mode: found 'sequential'; allowed: parallel: with --cfg
draw --device_map=auto --device=cpu  : --device_map: found 'auto'; allowed: only with --device auto
draw --sample=2                      : --sample: found 2; allowed: only with a list of prompts
draw --slice=0-1                     : --slice: found '0-1'; allowed: only with a list of prompts
draw --num_images=3 --samples_per_prompt=2 : --samples_per_prompt: found 2; allowed: --num_images
draw --prompt_file=x.tsv             : --prompt_file: found 'x.tsv'; allowed: only with --prompt
draw --target_size=512               : --target_size: found '512'; allowed: only with --model lumina
list --sample=5 --num_images=3       : --num_images: found 3; allowed: not together with --sample
list --sample_seed=1                 : --sample_seed: found 1; allowed: only with --sample
bench --methods=                     : --methods: found ''
bench --methods=ar,,adt              : --methods: found ''
bench --methods=ar,eagle             : --methods: found 'eagle'; allowed: name[:flag=value...], by
bench --methods=ar,ar                : --methods: found ar and ar, the same method; allowed: method
bench --methods=adt:depth=3          : --methods, in 'adt:depth=3': --depth: found 3; allowed: only
bench --methods=eagle2:depth         : --depth: found 'depth'; allowed: flag=value
bench --methods=eagle2:depth=x       : --depth: found 'x'; allowed: a whole number
bench --methods=eagle2:depth=3:depth=4 : --depth: found 'depth=4'; allowed: flag=value, once
bench --methods=eagle2:dephth=3      : --dephth: unknown flag; did you mean --depth
bench --methods=eagle2:seed=3        : --seed: unknown flag
bench --methods=eagle2:method=ar     : --method: unknown flag
bench --methods=ar,adt --method=adt  : --method: found 'adt'; allowed: not together with --methods
bench --methods=ar,adt --model_type=base : --method: found 'ar'; allowed: not together with --method
bench --methods=ar,adt --tree=chain  : --tree: found 'chain'; allowed: only for a method that has it
bench --methods=ar,adt --lantern_k=9 : --lantern_k: found 9; allowed: only for a method that has it
bench --quality                      : --quality: found True; allowed: only with attributes.safeten
bench --cells=0-1                    : --cells: found '0-1'; allowed: only with --sweep
sweep --methods=adt                  : --methods: found 'adt'; allowed: not together with --sweep
sweep --peanut                       : --method: found 'adt'; allowed: not together with --sweep
sweep --nodes=3                      : --nodes: found 3; allowed: not with --sweep sweep.yaml, which
sweep --cells=6-9                    : --cells: found '6-9'; allowed: a-b with b up to 2
sweep --tree=chain                   : --tree: found 'chain'; allowed: only for a method that has it
extract_tokens --output_dir=o        : --data_dir: missing; allowed: images with captions, or --from
images --from_prompts                : --data_dir: found together with --from_prompts
images --num_images=3                : --num_images: found 3; allowed: only with --from_prompts
images --method=ar                   : --method: found 'ar'; allowed: only with --from_prompts
images --top_k=5                     : --top_k: found 5; allowed: only with --from_prompts
images --output_dir=x --data_dir=.   : --output_dir: found twice
samples --verifier=lantern --method=adt : --verifier: found 'lantern'; allowed: exact, rejection
samples --num_images=0               : --num_images: found twice
extract_tokens --from_prompts        : --output_dir: missing
extract_tokens --output_dir=o --from_prompts --model_path=model : --num_images: missing
images --target_size=512             : --target_size: found '512'; allowed: only with --model lumin
evaluate --output_dir a --device tpu : --device: found 'tpu'
samples --model=anole                : --prompt: missing; allowed with --model anole: MSCOCO2017Trai
samples --prompt=PartiPrompts        : but not the prompts that models are judged by
"""
FILES = """
generate_images --prompt=no.txt --model_path model : --prompt no.txt: found no such file
generate_images --prompt=nofile.csv  : found 'nofile.csv', which looks like a file; allowed: a text
generate_images --prompt=prompts.odd : found 'prompts.odd', which is a file here; allowed: a text
generate_images --prompt=model       : found 'model', which is a folder here; allowed: a text; a .tx
benchmark --prompt=PartiPrompts --prompt_file=no --model_path model : --prompt PartiPrompts: found n
generate_images --prompt=x --model=anole --model_path=owner/name --method=adt : --drafter_path: miss
generate_images --prompt=x --model_path nowhere : --model_path nowhere: found no such folder; allowe
generate_images --prompt=x --model=lumina_mgpt  : found no such folder; allowed: this folder, once t
draw --tokenizer_path=nowhere        : --tokenizer_path nowhere: found no such folder
draw --tokenizer_path=model/drafter  : --tokenizer_path model/drafter: found no text_tokenizer.json
draw --drafter_path=model/tokenizer  : --drafter_path model/tokenizer: found a folder without config
vq_distances --tokenizer_path=./no   : --tokenizer_path ./no: found no such folder
extract_tokens --output_dir=o --data_dir=no : --data_dir: found 'no'; allowed: a folder, a .jsonl
bench --sweep=no.yaml                : --sweep no.yaml: cannot be read
draw --config=no.yaml                : --config no.yaml: cannot be read: [Errno 2] No such file
draw --config=model                  : --config model: cannot be read
draw --config=deep.yaml              : --config deep.yaml: found lists nested too deeply
draw --config=good.yaml,             : --config: found 'good.yaml,'; allowed: names of YAML files
"""
CASES = [
    case.split(" : ", 1)
    for group in (WORDS, VALUES, COMBINATIONS, FILES)
    for case in group.strip().splitlines()
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with a checkpoint, recipes, and files that are no prompts."""
    monkeypatch.chdir(tmp_path)
    empty_checkpoint(tmp_path / "model")
    (tmp_path / "prompts.odd").touch()
    (tmp_path / "deep.yaml").write_text("prompt: " + "[" * 20_000)
    (tmp_path / "good.yaml").write_text("cfg: 2\n")
    (tmp_path / "sweep.yaml").write_text("base: adt\naxes:\n  nodes: [4, 8]\n")
    return tmp_path


def check(capsys, words: str, message: str) -> None:
    first, _, rest = words.strip().partition(" ")
    assert main.main(shlex.split(f"{SHORT.get(first, first)} {rest}")) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and message.strip() in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize(("words", "message"), CASES, ids=[words.strip() for words, _ in CASES])
def test_a_command_line_is_refused_before_any_work(here, capsys, words, message):
    check(capsys, words, message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dephth: 5", "--config mine.yaml: dephth: unknown flag; did you mean depth"),
        ("peanut: true", "mine.yaml: peanut: unknown flag"),
        ("config: x.yaml", "mine.yaml: config: unknown flag"),
        ("lantern: true", "mine.yaml: lantern: unknown flag; did you mean lantern_"),
        ("start_idx: 3", "mine.yaml: start_idx: no such flag here; use --slice"),
        ("seed: 1\nseed: 2", "cannot be read: key 'seed' twice"),
        ("dtype: ~", "cannot be read: ~ for a value"),
        ("dtype: null", "cannot be read: null for a value; a text is written in quotes"),
        ("seed: [1]", "--seed: found ['1']; allowed: one value"),
        ("seed: 1.5", "--seed: found '1.5'"),
        ("seed:", "--seed: found None; allowed: one value, or no line at all"),
        ("method: no", "--method: found 'no'"),
        ("tree: chain", "--tree: found 'chain'"),
        ('output_dir: "a\\0b"', "--output_dir: found 'a\\x00b'; allowed: text without"),
        ("- seed", "found list; allowed: `name: value` lines"),
        ("seed", "found str; allowed"),
        ("a: b: c", "cannot be read"),
        ("sampling:\n  cfg: 3", "mine.yaml: sampling: unknown flag"),
    ],
)
def test_a_recipe_is_refused(here, capsys, text, message):
    (here / "mine.yaml").write_text(text)
    check(capsys, "draw --config=mine.yaml", message)
