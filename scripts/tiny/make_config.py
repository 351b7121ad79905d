"""Write config.json of the tiny model and of its drafter, in the Chameleon format.

`python -m scripts.tiny.make_config`
"""

from pathlib import Path

from models.files.tokenizer_file import load_tokenizer
from models.targets.chameleon import BOS, PAD, ChameleonVocab
from scripts.tiny.train_vqgan import TINY
from support.durable import encode_json, replace_file
from support.script import run_script

DECODER = {
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
}
VQ = {
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
}


def make(*, model_dir: str = "ckpts/tiny", layers: int = 16) -> None:
    """Write config.json and drafter/config.json; the vocabulary is the tokenizer's."""
    folder = Path(model_dir)
    vocab = ChameleonVocab(load_tokenizer(folder / "tokenizer" / "text_tokenizer.json"))
    common = {
        "model_type": "chameleon",
        "vocab_size": len(vocab.ids),
        "bos_token_id": vocab[BOS],
        "pad_token_id": vocab[PAD],
    }
    names = dict(sorted(vocab.ids.items(), key=lambda item: item[1]))
    model = {
        "architectures": ["ChameleonForConditionalGeneration"],
        **common,
        **DECODER,
        "num_hidden_layers": layers,
        "vq_config": VQ,
        "vocabulary_map": names,
    }
    drafter = common | DECODER | {"num_hidden_layers": 1, "bias": True}
    (folder / "drafter").mkdir(parents=True, exist_ok=True)
    replace_file(folder / "config.json", encode_json(model, indent=2))
    replace_file(folder / "drafter" / "config.json", encode_json(drafter, indent=2))


if __name__ == "__main__":
    run_script(make)
