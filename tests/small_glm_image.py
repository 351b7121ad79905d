"""A small GLM-Image with random weights, as transformers and diffusers write it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from small import OPTIONS, randomised, special_tokenizer, write_llama_drafter
from torch import Tensor
from transformers import GlmImageConfig, GlmImageForConditionalGeneration

from configs.model import EngineSettings
from configs.targets import TARGETS
from models.targets.glm_image import GlmImage
from runs.session import Session, open_session

CODES = 300
SIZES = vars(TARGETS["glm_image"].sizes)  # which tests give a smaller `preview`
NAMES = ("<pad>", "<sop>", "<eop>", "<|user|>")
TEMPLATE = "{% for m in messages %}<|user|>\n{{ m['content'][0]['text'] }}\n{% endfor %}"


def write_glm_image(root: Path, share: float = 0.5) -> Path:
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
    model.save_pretrained(folder, max_shard_size="60KB")  # several files
    processor.mkdir()
    processor_files(processor)
    entries = GlmImage().entries(json.loads((folder / "config.json").read_text()))
    target = GlmImage().load(folder, replace(OPTIONS, target_size="96x64"))
    write_llama_drafter(folder, entries, target.transformer)
    return folder


def processor_files(folder: Path) -> None:
    """Write the tokenizer: the image start has id CODES, as names of codes stand before it."""
    whole = special_tokenizer([f"<code{n}>" for n in range(CODES - 256)] + ["<start>", *NAMES])
    whole.save(str(folder / "tokenizer.json"))
    names = {"bos_token": "<start>", "grid_bos_token": "<sop>", "grid_eos_token": "<eop>"}
    settings = {**names, "pad_token": "<pad>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    # as published: not the defaults of the class, which are CLIP's
    pixels = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5], "patch_size": 16}
    pixels |= {"temporal_patch_size": 1, "merge_size": 1}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels))


def open_glm_image(settings: EngineSettings) -> Session:
    """Open a session whose small grid has 2 x 3 tokens; those of small models have 256, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(SIZES, "preview", 3)
        return open_session(settings)


def codes_of(pixels: Tensor) -> Tensor:
    """Pixels (..., 3), uint8 -> codes (...), of a picture with a pixel per token."""
    return 256 * pixels[..., 0].long() + pixels[..., 1].long()


def write_painter(root: Path) -> None:
    import diffusers
    from transformers import ByT5Tokenizer, T5Config, T5EncoderModel

    torch.manual_seed(0)
    vae = diffusers.AutoencoderKL(
        down_block_types=["DownEncoderBlock2D"] * 4, up_block_types=["UpDecoderBlock2D"] * 4,
        block_out_channels=[4] * 4, latent_channels=4, norm_num_groups=2, latents_mean=[0.0] * 4,
        latents_std=[1.0] * 4, mid_block_add_attention=False,
    )  # fmt: skip
    transformer = diffusers.GlmImageTransformer2DModel(
        in_channels=4, out_channels=4, num_layers=1, attention_head_dim=16, num_attention_heads=2,
        text_embed_dim=16, time_embed_dim=16, condition_dim=4,
        prior_vq_quantizer_codebook_size=CODES,
    )  # fmt: skip
    glyphs = T5Config(vocab_size=400, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    parts = (ByT5Tokenizer(), None, T5EncoderModel(glyphs), None, vae, transformer, scheduler)
    diffusers.GlmImagePipeline(*parts).save_pretrained(root)
    index = json.loads((root / "model_index.json").read_text())
    index["processor"] = ["transformers", "GlmImageProcessor"]
    index["vision_language_encoder"] = ["transformers", "GlmImageForConditionalGeneration"]
    (root / "model_index.json").write_text(json.dumps(index))


def hollow_painter(root: Path) -> None:
    """Write files that have the names of a painter's, its transformer's weights in two shards."""
    for name in ("scheduler", "tokenizer", "text_encoder", "transformer", "vae"):
        (root / name).mkdir()
        (root / name / "config.json").write_text("{}")
    (root / "model_index.json").write_text("{}")
    name = "diffusion_pytorch_model{}.safetensors"
    placed = {key: name.format(f"-{key}") for key in "12"}
    index = root / "transformer" / f"{name.format('')}.index.json"
    index.write_text(json.dumps({"weight_map": placed}))
    files = [f"transformer/{file}" for file in placed.values()]
    for file in (*files, f"vae/{name.format('')}", "text_encoder/model.safetensors"):
        save_file({"weight": torch.zeros(2)}, root / file)
