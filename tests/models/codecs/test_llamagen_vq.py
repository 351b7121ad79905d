"""LlamaGen's VQ-16 against transformers' Janus codec, which has the same architecture."""

from argparse import Namespace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from damage import Evil
from safetensors.torch import save_file
from small import shapes_of
from torch import Tensor
from transformers.models.janus.configuration_janus import JanusVQVAEConfig
from transformers.models.janus.modeling_janus import JanusVQVAE

from models.codecs.vqgan import ImageTokenizer, VqganConfig
from models.codecs.vqgan_files import llamagen_name, llamagen_vq
from models.codecs.vqgan_network import Vqgan
from scripts.checkpoints.llamagen import public_vq, small_janus, write_vq

CPU = torch.device("cpu")
SIDE, CODES = 4, 24


@pytest.fixture(scope="module")
def janus() -> JanusVQVAE:
    return small_janus(CODES, SIDE)


@pytest.fixture
def file(janus, tmp_path) -> Path:
    """The codec as the public file lays it out."""
    write_vq(tmp_path / "vq_ds16_t2i.pt", janus)
    return tmp_path / "vq_ds16_t2i.pt"


def images(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(256, (count, 8, 8, 3), generator=generator).byte()


def load(file: Path) -> ImageTokenizer:
    return llamagen_vq(file, SIDE).load(CPU)


@torch.inference_mode()
def test_encoder_equals_janus(janus, file) -> None:
    ours, pixels = load(file), images(2).permute(0, 3, 1, 2).float() / 127.5 - 1
    expected = janus.quant_conv(janus.encoder(pixels))  # (2, 4, 4, 4)
    found = ours.model.quant_conv(ours.model.encoder(pixels))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert expected.std() > 0.1
    unit = F.normalize(expected.permute(0, 2, 3, 1).flatten(1, 2), dim=-1)
    vectors = F.normalize(janus.quantize.embedding.weight, dim=-1)
    distance = torch.cdist(unit, vectors.expand(2, -1, -1))
    clear = distance.topk(2, largest=False).values.diff(dim=-1)[..., 0] > 1e-3  # no near ties
    assert clear.double().mean() > 0.9
    assert torch.equal(ours.encode(images(2))[clear], distance.argmin(-1)[clear])


@torch.inference_mode()
def test_decoder_equals_janus_and_rounds_to_the_nearest_byte(janus, file) -> None:
    generator = torch.Generator().manual_seed(2)
    ours, codes = load(file), torch.randint(CODES, (2, SIDE**2), generator=generator)
    expected = janus.decode(codes)  # (2, 3, 8, 8)
    latents = ours.codebook[codes].view(2, SIDE, SIDE, 4).permute(0, 3, 1, 2)
    found = ours.model.decoder(ours.model.post_quant_conv(latents))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert expected.std() > 0.1
    pixels = ours.decode(codes)
    exact = ((expected.clamp(-1, 1) + 1) * 127.5).permute(0, 2, 3, 1)
    assert pixels.shape == (2, 8, 8, 3) and pixels.dtype == torch.uint8
    assert (pixels - exact).abs().max() <= 0.5 + 1e-2
    assert torch.equal(ours.to(CPU).decode(codes), pixels)


def test_full_size_keys_shapes_and_number_of_parameters() -> None:
    config = VqganConfig(128, (1, 1, 2, 2, 4), 2, 256, 8, 16384, 256, coarse_attention=True)
    with torch.device("meta"):
        model, reference = Vqgan(config), JanusVQVAE(JanusVQVAEConfig())
    state = {llamagen_name(name, 5): weight for name, weight in model.state_dict().items()}
    found = shapes_of(state)
    assert found == shapes_of(public_vq(reference.state_dict()))
    assert found["encoder.conv_blocks.4.attn.1.proj_out.weight"] == (512, 512, 1, 1)
    assert found["decoder.conv_blocks.0.attn.2.norm.weight"] == (512,)
    assert found["decoder.conv_blocks.3.upsample.conv.weight"] == (128, 128, 3, 3)
    assert found["post_quant_conv.weight"] == (256, 8, 1, 1)
    assert sum(weight.numel() for weight in model.parameters()) == 71_883_403


def test_safetensors_and_the_trainers_arguments_are_read(janus, file, tmp_path) -> None:
    codes = load(file).encode(images(1))
    save_file(public_vq(janus.state_dict()), tmp_path / "vq.safetensors")
    trained = {"model": public_vq(janus.state_dict()), "args": Namespace(lr=1.0)}
    torch.save(trained, tmp_path / "trained.pt")
    assert torch.equal(load(tmp_path / "vq.safetensors").encode(images(1)), codes)
    assert torch.equal(load(tmp_path / "trained.pt").encode(images(1)), codes)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"model": {"a": Evil(Path("ran"))}}, "damaged, or more than tensors"),
        ({"model": {"a": 1}}, "expected tensors"),
        ([1], "expected tensors"),
        ({"model": {}}, "missing key encoder.conv_in.weight"),
    ],
    ids=["runs code", "no tensors", "no dictionary", "no weights"],
)
def test_a_file_with_something_else_is_refused(content, message, tmp_path) -> None:
    torch.save(content, tmp_path / "vq.pt")
    with pytest.raises(ValueError, match=rf"vq\.pt.*{message}"):
        load(tmp_path / "vq.pt")


def test_a_missing_or_cut_file_is_named(file, tmp_path) -> None:
    message = r"--vq_path: expected .*vq_ds16_t2i\.pt, got no file .*nowhere\.pt"
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "nowhere.pt")
    file.write_bytes(file.read_bytes()[:2000])
    with pytest.raises(ValueError, match=r"cannot read .*vq_ds16_t2i\.pt"):
        load(file)
