"""What earlier versions had and this one does not: what to use instead, or why it went.

Whoever still asks for it, on a command line, in a recipe or from Python, gets this one line.
`docs/results/tried.md` has the measurements.
"""

_FULL_SIZE = "trees grow to --depth and --nodes; compare numbers with benchmark"
# flags of the paper's repository, or its relatives, and of our own earlier versions
GONE_FLAGS = {
    "model_type": "use --method NAME: base is ar, eagle is eagle2",
    "peanut": "use --method adt",
    "static_tree": "use --method static",
    "lantern": "use --verifier lantern",
    "precision": "use --dtype",
    "random_seed": "use --seed",
    "set_seed": "leave it out: every image has a seed of its own",
    "start_idx": "use --slice a-b",
    "end_idx": "use --slice a-b",
    "eagle_version": "use --method static (1) or --method eagle2 (2)",
    "tree_choices": "use --method static --tree NAME",
    "drafter_top_k": "use --width",
    "grid_search": "it never had an effect",
    "tokenizer_base_path": "use --tokenizer_path",
    "size": _FULL_SIZE,
    "prices": _FULL_SIZE,
    "calibration": "leave it out: estimates need no factors; `tune` writes its recipe anew",
    "costs": "a sweep times its cells",
    "estimate": "configs/training has the memory that recipes take; --accumulate takes less",
    "learn": "train the drafter beforehand, with train_drafter",
    "learn_share": "train the drafter beforehand, with train_drafter",
    "quality": "use --metrics accuracy of evaluate, on runs of generate_images",
    "aesthetic_path": "use --metrics hpsv2",
    "aesthetic_clip_path": "use --metrics hpsv2",
}
# What recipes of earlier versions may still say, since it is what happens in any case.
STILL_SO = {
    "size": ("fixed",),
    "calibration": ("none", "drafter"),
    "learn": ("false", "no", "off", "0"),
}
# kinds of heads that --drafter of train_drafter had, and the config.json of a drafter
GONE_DRAFTERS = {
    "exit": "train an EAGLE head (--drafter eagle), which accepts more; revision 832cd7a still has "
    "early exits"
}
# method names of earlier versions -> today's; files on disk may have either
RENAMED_METHODS = {"similar": "recall", "graft_similar": "eagle_recall"}
# names that --method had
GONE_METHODS = {
    "graft": "use --method eagle_recall, which accepts more",
    "marginal": "use --method eagle2 with --depth and --nodes; benchmark finds the fastest",
    "ngram": "use --method recall or jacobi, which need no drafter either and accept more",
}
# names that --metrics of evaluate had
GONE_METRICS = {"is": "use fid", "tiny_is": "use tiny_fid", "aesthetic": "use hpsv2"}
