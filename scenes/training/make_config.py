"""Write the tiny model's text tokenizer and its config.json, in the Chameleon format.

`python -m scenes.training.make_config`
"""

from pathlib import Path

from models.targets.chameleon import BOS, PAD
from scenes.training.images import read_captions
from scenes.training.make_tokenizer import build_tokenizer
from scenes.training.train_vqgan import TINY
from support.durable import encode_json, replace_file
from support.script import run_script

CONFIG = {
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "swin_norm": False,
    "model_parallel_size": 1,
    "tie_word_embeddings": False,
    "num_hidden_layers": 16,
    "vq_config": {
        "embed_dim": TINY.embed_dim,
        "num_embeddings": TINY.n_embed,
        "double_latent": False,
        "latent_channels": TINY.z_channels,
        "resolution": TINY.resolution,
        "in_channels": 3,
        "base_channels": TINY.ch,
        "channel_multiplier": list(TINY.ch_mult),
        "num_res_blocks": TINY.num_res_blocks,
        "attn_resolutions": None,
        "attn_type": "vanilla",
    },
}


def make(*, work_dir: str = "work/tiny", model_dir: str = "ckpts/tiny") -> None:
    """Train the tokenizer on `captions_train.jsonl`; write it, and config.json with its names."""
    captions = [record["caption"] for record in read_captions(Path(work_dir), "train")]
    tokenizer = build_tokenizer(captions)
    lengths = [len(tokenizer.encode(text).ids) for text in captions]
    target = Path(model_dir) / "tokenizer" / "text_tokenizer.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    replace_file(target, tokenizer.to_str(pretty=True).encode())
    size, mean = tokenizer.get_vocab_size(), sum(lengths) / len(lengths)
    print(f"{target}: {size} ids; captions have {mean:.2f} tokens, at most {max(lengths)}")
    names = dict(sorted(tokenizer.get_vocab().items(), key=lambda item: item[1]))
    config = {
        "architectures": ["ChameleonForConditionalGeneration"],
        "model_type": "chameleon",
        "vocab_size": size,
        "bos_token_id": names[BOS],
        "pad_token_id": names[PAD],
        **CONFIG,
        "vocabulary_map": names,
    }
    replace_file(Path(model_dir) / "config.json", encode_json(config, indent=2))


if __name__ == "__main__":
    run_script(make)
