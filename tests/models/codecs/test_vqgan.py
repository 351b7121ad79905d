"""VQGAN: key map, parity with transformers' Chameleon encoder, files."""

import re

import pytest
import torch
import yaml
from safetensors.torch import load_file
from small import shapes_of
from transformers.models.chameleon.configuration_chameleon import ChameleonVQVAEConfig
from transformers.models.chameleon.modeling_chameleon import ChameleonVQVAE
from transformers.models.janus.configuration_janus import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAE

from models.codecs.vqgan import ImageTokenizer, VqganConfig, read_config, write_config
from models.codecs.vqgan_files import load_vqgan, save_vqgan
from models.codecs.vqgan_network import Vqgan

SMALL = VqganConfig(32, (1, 2), 1, z_channels=8, embed_dim=4, n_embed=16, resolution=16)


@pytest.fixture
def tokenizer() -> ImageTokenizer:
    torch.manual_seed(0)
    model = Vqgan(SMALL)
    torch.nn.init.normal_(model.quantize.embedding.weight)
    return ImageTokenizer(model, SMALL)


def _images(count: int, side: int = 16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randint(256, (count, side, side, 3), generator=generator, dtype=torch.uint8)


@pytest.mark.parametrize("kind", ["export", "checkpoint with keys of the loss"])
def test_export_and_load_give_the_same_pixels_and_codes(kind, tokenizer, tmp_path) -> None:
    save_vqgan(tokenizer, tmp_path)
    if kind != "export":
        path = tmp_path / "vqgan.safetensors"
        state = load_file(path) | {"loss.discriminator.weight": torch.zeros(2)}
        path.unlink()
        torch.save({"state_dict": state, "epoch": 3}, tmp_path / "vqgan.ckpt")
    loaded = load_vqgan(tmp_path)
    codes = tokenizer.encode(_images(3))
    assert loaded.config == SMALL and loaded.config.side == 8
    assert torch.equal(loaded.encode(_images(3)), codes)
    assert torch.equal(loaded.decode(codes), tokenizer.decode(codes))


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_damaged_weights_make_neither_pixels_nor_codes(value, tokenizer) -> None:
    codes = tokenizer.encode(_images(1))
    for layer in (tokenizer.model.encoder.conv_in, tokenizer.model.decoder.conv_out):
        layer.bias.data[0] = value
    for damaged in (lambda: tokenizer.decode(codes), lambda: tokenizer.encode(_images(1))):
        with pytest.raises(FloatingPointError, match="the image codec: expected finite numbers"):
            damaged()


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
    """The decoder's are those of Janus without attention, except that levels count downwards."""
    with torch.device("meta"):
        model = Vqgan(VqganConfig(128, (1, 1, 2, 2, 4), 2, 256, 256, 8192, 512))
        encoder = ChameleonVQVAE(ChameleonVQVAEConfig())
        janus = JanusVQVAE(JanusVQVAEConfig(embed_dim=256))
    decoder = {
        re.sub(r"\.up\.(\d)", lambda level: f".up.{4 - int(level[1])}", key): shape
        for key, shape in shapes_of(janus.state_dict()).items()
        if key.startswith("decoder.") and not re.search(r"up\.\d\.attn", key)
    }
    found = shapes_of(model.state_dict())
    assert found == shapes_of(encoder.state_dict()) | decoder
    assert found["quantize.embedding.weight"] == (8192, 256)


@pytest.mark.parametrize(
    ("config", "parameters"),
    [
        (VqganConfig(256, (1, 1, 2, 2, 4), 4, 256, 256, 131_072, 256, 32, True), 455_336_963),
        (VqganConfig(256, (1, 2, 2, 4), 2, 4, 4, 16_384, 768, 32, True, True), 270_669_103),
    ],
    ids=["Emu3.5", "Lumina-mGPT 2.0"],
)
def test_published_codecs(config, parameters) -> None:
    with torch.device("meta"):
        model = Vqgan(config)
    assert sum(weight.numel() for weight in model.parameters()) == parameters


def test_lossconfig_is_ignored_and_groups_are_kept(tmp_path) -> None:
    path = tmp_path / "vqgan.yaml"
    config = VqganConfig(**{**vars(SMALL), "num_groups": 8})
    write_config(config, path)
    content = yaml.safe_load(path.read_text())
    more = {"lossconfig": {"target": "some.Loss"}, "ckpt_path": "elsewhere.ckpt"}
    content["model"]["params"] |= more
    path.write_text(yaml.safe_dump(content))
    assert read_config(path) == config
