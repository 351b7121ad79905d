"""What paints a small GLM-Image's tokens, and a small grid for it."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from configs.model import EngineSettings
from configs.targets import TARGETS
from runs.session import Session, open_session
from scripts.checkpoints.glm_image import FEW

SIZES = vars(TARGETS["glm_image"].sizes)  # which tests give a smaller `preview`


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
        prior_vq_quantizer_codebook_size=FEW,
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
