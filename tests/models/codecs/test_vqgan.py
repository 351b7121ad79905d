"""VQGAN: key map, parity with transformers' Chameleon encoder, files."""

import pytest
import torch
import yaml
from safetensors.torch import load_file
from small import shapes_of
from transformers.models.chameleon.configuration_chameleon import ChameleonVQVAEConfig
from transformers.models.chameleon.modeling_chameleon import ChameleonVQVAE

from models.codecs.vqgan import ImageTokenizer, VqganConfig, read_config, write_config
from models.codecs.vqgan_files import build_vqmodel, load_vqgan, save_vqgan, to_taming

SMALL = VqganConfig(32, (1, 2), 1, z_channels=8, embed_dim=4, n_embed=16, resolution=16)
CHAMELEON = VqganConfig(128, (1, 1, 2, 2, 4), 2, 256, 256, 8192, 512)


@pytest.fixture
def tokenizer() -> ImageTokenizer:
    torch.manual_seed(0)
    model = build_vqmodel(SMALL)
    torch.nn.init.normal_(model.quantize.embedding.weight)
    return ImageTokenizer(model, SMALL)


def _images(count: int, side: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(256, (count, side, side, 3), generator=generator, dtype=torch.uint8)


def test_export_and_load_give_the_same_pixels_and_codes(tokenizer, tmp_path) -> None:
    save_vqgan(tokenizer, tmp_path)
    loaded = load_vqgan(tmp_path)
    codes = tokenizer.encode(_images(3))
    assert loaded.config == SMALL and loaded.grid == (8, 8)
    assert torch.equal(loaded.encode(_images(3)), codes)
    assert torch.equal(loaded.decode(codes), tokenizer.decode(codes))


def test_one_image_or_many(tokenizer) -> None:
    images = _images(4)
    codes = tokenizer.encode(images)
    assert codes.dtype == torch.int64 and codes.shape == (4, 64)
    pixels = tokenizer.decode(codes)
    assert pixels.dtype == torch.uint8 and pixels.shape == (4, 16, 16, 3)
    for index in range(4):
        assert torch.equal(tokenizer.encode(images[index : index + 1])[0], codes[index])
        assert torch.equal(tokenizer.decode(codes[index : index + 1])[0], pixels[index])


def test_decode_follows_the_public_recipe(tokenizer) -> None:
    codes = torch.randint(16, (1, 8), generator=torch.Generator().manual_seed(4))
    latents = tokenizer.codebook[codes].view(1, 2, 4, 4).permute(0, 3, 1, 2)
    with torch.no_grad():
        output = tokenizer.model.decoder(tokenizer.model.post_quant_conv(latents))
    expected = ((output.clamp(-1, 1) + 1) / 2 * 255).to(torch.uint8).permute(0, 2, 3, 1)
    found = tokenizer.decode(codes, grid=(2, 4))
    assert found.shape == (1, 4, 8, 3)
    # another memory layout may round across a step
    assert int((found.int() - expected.int()).abs().max()) <= 1
    assert tokenizer.decode(codes, grid=(4, 2)).shape == (1, 8, 4, 3)


def test_encoder_equals_transformers_chameleon(tokenizer, tmp_path) -> None:
    config = ChameleonVQVAEConfig(
        embed_dim=4, num_embeddings=16, latent_channels=8, resolution=16, base_channels=32,
        channel_multiplier=[1, 2], num_res_blocks=1,
    )  # fmt: skip
    reference = ChameleonVQVAE(config).eval()
    save_vqgan(tokenizer, tmp_path)
    weights = load_file(tmp_path / "vqgan.safetensors")
    half = {name: value for name, value in weights.items() if not name.startswith("decoder.")}
    reference.load_state_dict(half, strict=True)
    images = _images(3)
    pixels = images.permute(0, 3, 1, 2).float() / 127.5 - 1.0
    with torch.no_grad():
        expected = reference.quant_conv(reference.encoder(pixels))
        found = tokenizer.model.quant_conv(tokenizer.model.encoder(pixels))
        tokens = reference.encode(pixels).image_tokens
    assert float((expected - found).abs().max()) < 1e-4
    distance = torch.cdist(expected.permute(0, 2, 3, 1).flatten(1, 2), tokenizer.codebook)
    clear = distance.topk(2, largest=False).values.diff(dim=-1)[..., 0] > 1e-3  # no near ties
    assert clear.double().mean() > 0.9
    assert torch.equal(tokens.view(3, -1)[clear], tokenizer.encode(images)[clear])


def test_full_chameleon_keys_are_the_public_ones() -> None:
    with torch.device("meta"):
        model = build_vqmodel(CHAMELEON)
        reference = ChameleonVQVAE(ChameleonVQVAEConfig())
    found = shapes_of(to_taming(model.state_dict(), 5))
    assert found == shapes_of(reference.state_dict()) | _decoder_shapes()
    assert found["quantize.embedding.weight"] == (8192, 256)


def _decoder_shapes() -> dict[str, tuple[int, ...]]:
    """Keys and shapes of the public Chameleon decoder, written out from its description."""
    shapes: dict[str, tuple[int, ...]] = {}

    def conv(name: str, inner: int, outer: int, kernel: int = 3) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outer, inner, kernel, kernel), (outer,)

    def norm(name: str, width: int) -> None:
        shapes[f"{name}.weight"] = shapes[f"{name}.bias"] = (width,)

    def block(name: str, inner: int, outer: int) -> None:
        norm(f"{name}.norm1", inner), norm(f"{name}.norm2", outer)
        conv(f"{name}.conv1", inner, outer), conv(f"{name}.conv2", outer, outer)
        if inner != outer:
            conv(f"{name}.nin_shortcut", inner, outer, 1)

    conv("decoder.conv_in", 256, 512)
    block("decoder.mid.block_1", 512, 512), block("decoder.mid.block_2", 512, 512)
    norm("decoder.mid.attn_1.norm", 512)
    for part in ("q", "k", "v", "proj_out"):
        conv(f"decoder.mid.attn_1.{part}", 512, 512, 1)
    inner = 512
    for level, width in ((4, 512), (3, 256), (2, 256), (1, 128), (0, 128)):
        for index in range(3):
            block(f"decoder.up.{level}.block.{index}", inner, width)
            inner = width
        if level:
            conv(f"decoder.up.{level}.upsample.conv", width, width)
    norm("decoder.norm_out", 128), conv("decoder.conv_out", 128, 3)
    return shapes


def test_checkpoint_with_loss_keys_is_read(tokenizer, tmp_path) -> None:
    save_vqgan(tokenizer, tmp_path)
    weights = load_file(tmp_path / "vqgan.safetensors")
    (tmp_path / "vqgan.safetensors").unlink()
    state = {**weights, "loss.discriminator.weight": torch.zeros(2)}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "vqgan.ckpt")
    codes = tokenizer.encode(_images(1))
    assert torch.equal(load_vqgan(tmp_path).decode(codes), tokenizer.decode(codes))


def test_lossconfig_is_ignored_and_groups_are_kept(tmp_path) -> None:
    path = tmp_path / "vqgan.yaml"
    config = VqganConfig(**{**vars(SMALL), "num_groups": 8})
    write_config(config, path)
    content = yaml.safe_load(path.read_text())
    more = {"lossconfig": {"target": "some.Loss"}, "ckpt_path": "elsewhere.ckpt"}
    content["model"]["params"] |= more
    path.write_text(yaml.safe_dump(content))
    assert read_config(path) == config
