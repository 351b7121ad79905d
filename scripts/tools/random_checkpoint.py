"""Anole's architecture with random weights, in the public layout, to time what cannot be
downloaded: `python -m scripts.tools.random_checkpoint --scale 8 --output work/random_anole`.

Sizes are those of leloy/Anole-7b-v0.1-hf and jadohu/anole_drafter, with widths divided by `scale`,
all image codes, and a small VQGAN. Distributions are random, so drafts are hardly ever right: it
serves to time forward passes, not speed-ups.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from configs.fields import refuse
from drafters.eagle_head import EagleHead
from drafters.kinds import eagle_keys
from models.codecs.vqgan import ImageTokenizer
from models.codecs.vqgan_config import VqganConfig
from models.codecs.vqgan_layout import build_vqmodel
from models.files.network import public_state
from models.targets.chameleon_network import chameleon_keys, chameleon_spec
from models.transformer import Transformer
from scripts.gpu.shapes import CODES, IDS, LAYERS, head_config, public_config, randomised
from scripts.tiny.make_tokenizer import image_token_name
from support.script import run_script

VQGAN = VqganConfig(
    ch=32,
    ch_mult=(1, 1, 2, 2, 4),
    num_res_blocks=1,
    z_channels=32,
    embed_dim=32,
    n_embed=CODES,
    resolution=512,
)


def vocabulary() -> dict[str, int]:
    """Return Chameleon's ids by name, with bytes in place of its words.

    `<reservedNNNNN>` has the id NNNNN + 4.
    """
    names = [
        "<s>",
        "<pad>",
        "</s>",
        "<unk>",
        *map(image_token_name, range(CODES)),
        "<eoss>",
        "<racm3:break>",
    ]
    names += [f"<reserved{i - 4:05d}>" for i in range(len(names), 9000)]
    names += sorted(pre_tokenizers.ByteLevel.alphabet())
    names += [f"<reserved{i - 4:05d}>" for i in range(len(names), IDS)]
    return {name: i for i, name in enumerate(names)}


def write(*, output: str, scale: int = 1, layers: int = LAYERS) -> None:
    """Write target and drafter in bf16 with their tokenizer and VQGAN.

    Args:
        output: the checkpoint's folder; 15 GB at scale 1.
        scale: 1, 2, 4, 8, 16 or 32: what widths and heads are divided by.
        layers: of the target.
    """
    if scale not in (1, 2, 4, 8, 16, 32):
        refuse("scale", scale, "1, 2, 4, 8, 16 or 32")
    folder = Path(output)
    (folder / "drafter").mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    config = public_config(scale, layers)
    for_head = head_config(config)
    with torch.device("meta"):
        spec = chameleon_spec(config)
        target, head = Transformer(spec, spec.vocab), EagleHead(chameleon_spec(for_head))
    for place, module, content, keys in (
        (folder, target, config, chameleon_keys(spec, None)),
        (folder / "drafter", head, for_head, eagle_keys(head.spec, True)),
    ):
        (place / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        save_file(
            public_state(randomised(module, torch.bfloat16, torch.device("cpu")), keys),
            place / "model.safetensors",
            {"format": "pt"},
        )
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    ImageTokenizer(build_vqmodel(VQGAN), VQGAN).save(folder / "tokenizer")
    tokenizer.save(str(folder / "tokenizer" / "text_tokenizer.json"))
    print(
        f"{folder}: {sum(weight.numel() for weight in target.parameters()):,} weights and a drafter"
    )


if __name__ == "__main__":
    run_script(write)
