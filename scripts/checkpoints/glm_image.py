"""GLM-Image's autoregressive part with random weights, as transformers writes it."""

from functools import partial
from pathlib import Path

from transformers import GlmImageConfig, GlmImageForConditionalGeneration

from models.targets.glm_image import UNREAD, GlmImage
from scripts.checkpoints.parts import add_drafter, randomised, special_tokenizer, write_json
from scripts.checkpoints.published import Published, State

NAMES = ("<pad>", "<sop>", "<eop>", "<|user|>")
TEMPLATE = "{% for m in messages %}<|user|>\n{{ m['content'][0]['text'] }}\n{% endfor %}"
FEW, CODES, POSITIONS = 300, 16_384, 131_072  # codes of small ones; of zai-org/GLM-Image


def write_glm_image(folder: Path, share: float = 0.5, positions: int = 700) -> Path:
    """Write the target, and the processor next to its folder, which is returned.

    share: of rotated channels.
    """
    model = randomised(GlmImageForConditionalGeneration(public_config(FEW, share, positions)), 0)
    model.lm_head.weight.data[FEW:] += 0.5  # other ids would often be likelier than codes
    model.save_pretrained(folder, max_shard_size="60KB")  # several files
    write_processor(folder.parent / "processor", FEW)
    add_drafter(GlmImage(), folder, "96x64")
    return folder


def public_config(codes: int, share: float = 0.5, positions: int = 700) -> GlmImageConfig:
    """Return a config.json as the public one, with smaller numbers."""
    return GlmImageConfig(
        text_config={
            "vocab_size": codes + 300, "hidden_size": 64, "intermediate_size": 72,
            "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": positions, "vision_vocab_size": codes + 8,
            "pad_token_id": 0, "eos_token_id": codes + 1,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share,
                "mrope_section": [2, 1, 1] if share == 0.5 else [3, 2, 3],
            },
        },
        vision_config={"depth": 1, "hidden_size": 16, "num_heads": 2, "intermediate_size": 16,
                       "image_size": 64, "patch_size": 16},
        vq_config={"embed_dim": 8, "num_embeddings": codes, "latent_channels": 16},
        image_token_id=codes + 2, image_start_token_id=codes, image_end_token_id=codes + 1,
    )  # fmt: skip


def write_processor(folder: Path, codes: int) -> None:
    """Write the tokenizer, whose names of codes stand before the image start, and its settings."""
    names = {"bos_token": "<start>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}
    settings = {**names, "pad_token": "<pad>", "tokenizer_class": "PreTrainedTokenizerFast"}
    write_json(folder / "tokenizer_config.json", settings)
    whole = special_tokenizer([f"<code{n}>" for n in range(codes - 256)] + ["<start>", *NAMES])
    whole.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    # as published: not the defaults of the class, which are CLIP's
    pixels = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "patch_size": 16}
    pixels |= {"temporal_patch_size": 1, "merge_size": 1}
    write_json(folder / "preprocessor_config.json", pixels)


def write_parts(folder: Path) -> State:
    """Write the processor; returns the weights of the vision encoder, narrow."""
    write_processor(folder.parent / "processor", CODES)
    state = randomised(GlmImageForConditionalGeneration(public_config(CODES)), 0).state_dict()
    return {key: value for key, value in state.items() if key.startswith(UNREAD)}


# Sizes that are not stated are transformers' defaults, which are the published ones.
ROPE = {
    "rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5,
    "mrope_section": [8, 12, 12],
}  # fmt: skip
CONFIG = public_config(CODES).to_dict() | {
    "text_config": {"max_position_embeddings": POSITIONS, "rope_parameters": ROPE}
}
SMALL = {"glm_image": partial(write_glm_image, positions=POSITIONS)}
FULL = {"glm_image": Published("glm_image", CONFIG, write_parts)}
