"""A small GLM-Image with random weights, without its painter, as transformers writes it."""

import json
from dataclasses import replace
from pathlib import Path

import torch
from small import (
    llama_drafter,
    randomised,
    small_settings,
    special_tokenizer,
    write_drafter,
)
from transformers import GlmImageConfig, GlmImageForConditionalGeneration

from configs.schema import RunSettings
from models.base import TargetOptions
from models.targets.glm_image import GlmImage

CODES = 300
NAMES = ("<pad>", "<sop>", "<eop>", "<|user|>")
TEMPLATE = "{% for m in messages %}<|user|>\n{{ m['content'][0]['text'] }}\n{% endfor %}"


def write_glm_image(root: Path, share: float = 0.5, shard: str = "50GB") -> Path:
    """Write a folder of all parts; returns the target's. share: of rotated channels."""
    folder, processor = root / "vision_language_encoder", root / "processor"
    config = GlmImageConfig(
        text_config={
            "vocab_size": CODES + 300, "hidden_size": 64, "intermediate_size": 72,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 700, "vision_vocab_size": CODES + 8, "pad_token_id": 0,
            "eos_token_id": CODES + 1,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share,
                "mrope_section": [2, 1, 1] if share == 0.5 else [3, 2, 3],
            },
        },
        vision_config={"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16,
                       "image_size": 64, "patch_size": 16},
        vq_config={"embed_dim": 8, "num_embeddings": CODES, "latent_channels": 16},
        image_token_id=CODES + 2, image_start_token_id=CODES, image_end_token_id=CODES + 1,
    )  # fmt: skip
    model = randomised(GlmImageForConditionalGeneration(config), 0)
    model.lm_head.weight.data[CODES:] += 0.5  # other ids would often be likelier than codes
    model.save_pretrained(folder, max_shard_size=shard)
    processor.mkdir()
    processor_files(processor)
    entries = GlmImage().entries(json.loads((folder / "config.json").read_text()))
    options = TargetOptions(torch.float32, torch.device("cpu"), target_size="96x64")
    target = GlmImage().load(folder, options)
    write_drafter(folder / "drafter", *llama_drafter(entries, target.transformer))
    return folder


def processor_files(folder: Path) -> None:
    """Write the tokenizer: the image start has id CODES, as names of codes stand before it."""
    whole = special_tokenizer([f"<code{n}>" for n in range(CODES - 256)] + ["<start>", *NAMES])
    whole.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<start>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}
    settings = {**names, "pad_token": "<pad>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)


def glm_image_settings(folder: Path, dtype: str = "fp64", **sampling: float) -> RunSettings:
    """Return the settings of a run on a small checkpoint."""
    found = small_settings(folder, dtype, "glm_image", **{"cfg": 1.0, **sampling})
    return replace(found, target_size="96x64")
