"""Flags of the paper's own repository, and what to write here."""

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
}
