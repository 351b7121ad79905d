"""Image GPT against its modules written out, and its files."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from damage import inspected, rows
from families import PROMPTS, SMALL, cached_logits, decoded, extracted
from small import small_settings
from torch import Tensor

from adt_tree.sources import source_values
from configs.training import TrainSettings
from decoding.noise import gumbel
from drafters.training.heads import head_config
from models.registry import load_codec
from models.rotary import Unrotated
from models.targets.image_gpt import ImageGpt
from scripts.checkpoints.image_gpt import SIZES, public_weights, write_lightning
from scripts.checkpoints.parts import OPTIONS

LAYOUTS = ["image_gpt"]


def plain_logits(codes: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Return logits (1 + n, colours) before and after each of codes (n,): one pass, no cache."""
    state = {name: value.to(dtype) for name, value in public_weights().items()}
    width, heads = SIZES["embed_dim"], SIZES["num_heads"]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ state[f"{name}weight"].T + state[f"{name}bias"]

    def norm(x: Tensor, name: str) -> Tensor:
        x = x - x.mean(-1, keepdim=True)
        x = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return x * state[f"{name}.weight"] + state[f"{name}.bias"]

    h = torch.cat([state["gpt.sos"][None], state["gpt.token_embeddings.weight"][codes]])
    h = h + F.pad(state["gpt.position_embeddings.weight"], (0, 0, 0, 1))[: len(h)]
    later = torch.ones(len(h), len(h)).triu(1).bool()
    for layer in range(SIZES["num_layers"]):
        at = f"gpt.layers.{layer}."
        h = norm(h, f"{at}ln_1")
        # (3, heads, n, width of a head)
        q, k, v = linear(h, f"{at}attn.in_proj_").view(len(h), 3, heads, -1).permute(1, 2, 0, 3)
        scores = q @ k.mT / math.sqrt(width / heads)
        read = scores.masked_fill(later, -math.inf).softmax(-1) @ v
        h = h + linear(read.transpose(0, 1).flatten(1), f"{at}attn.out_proj.")
        inner = linear(norm(h, f"{at}ln_2"), f"{at}mlp.0.")
        inner = inner * (1 + torch.erf(inner / math.sqrt(2))) / 2
        h = h + linear(inner, f"{at}mlp.2.")
    return norm(h, "gpt.ln_f") @ state["gpt.head.weight"].T


@pytest.mark.parametrize(("dtype", "bound"), [("fp64", 1e-10), ("fp32", 1e-4)])
def test_logits_are_those_of_its_modules(dtype, bound, family, original) -> None:
    codes = torch.arange(25) % SIZES["num_vocab"]
    expected = plain_logits(codes)
    assert expected.std() > 0.3 and expected.argmax(-1).unique().numel() > 2
    target = SMALL[family].load(original, dtype=dtype).target
    found = cached_logits(target, "any", codes.tolist(), guidance=1)[0]
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=bound)


def test_plain_decoding_is_a_loop_over_its_modules(session) -> None:
    images = decoded(session)
    assert not torch.equal(images[0], images[1])
    for number, image in enumerate(images):
        codes: list[int] = []
        while len(codes) < SIZES["num_pixels"] ** 2:
            scores = plain_logits(torch.tensor(codes, dtype=torch.long))[-1].log_softmax(-1)
            position = torch.tensor([len(codes)])
            scores += gumbel(7 + number, "target", position, SIZES["num_vocab"])[0]
            codes.append(int(scores.argmax()))
        assert image.tolist() == codes


def test_a_prompt_only_names_an_image(session) -> None:
    rows = [session.target.prompt(text, 1).ids.tolist() for text in PROMPTS]
    assert rows == [[[SIZES["num_vocab"]]]] * len(PROMPTS)


def test_pixels_are_the_palettes_greys(session, original, tmp_path) -> None:
    greys = public_weights()["centroids"][:, 0]
    codes = torch.arange(25) % SIZES["num_vocab"]
    pixels = session.target.to_image(codes[None])[0]
    expected = np.round(255 * greys.numpy()[codes]).reshape(5, 5)
    assert (pixels.numpy() == expected[..., None]).all()
    codec = load_codec("image_gpt", str(original), OPTIONS)
    assert torch.equal(codec.images.encode(pixels[None])[0], codes)
    pixels, found = extracted("image_gpt", original, (5, 5), tmp_path)
    distances = (pixels.float().mean(-1).flatten()[:, None] / 255 - greys).abs()
    assert torch.equal(found[0], distances.argmin(-1))


def test_inspect_and_a_path_alone_know_the_file(original, capsys) -> None:
    code, report = inspected(capsys, original, "--model=image_gpt", "--cfg=1")
    assert code == 0
    assert "2 layers, hidden 16, 2 heads, 8 ids" in rows(report)["target", "config.json"]["text"]
    assert "an image is 5 x 5 tokens" in rows(report)["parts", "together"]["text"]
    values = source_values(str(original), {})
    assert values == {"model": "image_gpt", "model_path": str(original), "cfg": 1.0}


def test_a_new_drafter_is_a_layer_of_llama_as_wide(original) -> None:
    engine = small_settings(original, model="image_gpt")
    config = head_config(TrainSettings(tokens="t", output_dir="o", engine=engine))
    assert (config["hidden_size"], config["vocab_size"]) == (16, 8)
    target = ImageGpt().load(original, OPTIONS)
    assert not target.drafter_spec(config).gpt2
    assert isinstance(target.transformer.blocks.rotary, Unrotated)


class Command:
    """What a checkpoint must not be able to run."""

    def __reduce__(self) -> tuple:
        return print, ("run",)


def without(name: str) -> dict[str, Tensor]:
    return {key: value for key, value in public_weights().items() if key != name}


@pytest.mark.parametrize(
    ("state", "sizes", "message"),
    [
        (public_weights(), {"num_heads": 3}, "embed_dim: expected a multiple of 6, got 16"),
        (public_weights(), {"num_layers": 0}, "model.ckpt: num_layers: expected whole numbers"),
        (public_weights(), {"num_layers": 3}, "missing key gpt.layers.2.ln_1.weight"),
        (public_weights(), {"num_pixels": 6}, r"position_embeddings.weight has shape \(25, 16\)"),
        (without("centroids"), {}, r"centroids: expected greys \(7, 1\), got none"),
        (without("gpt.sos"), {}, "missing key gpt.sos"),
        (public_weights() | {"gpt.more": torch.ones(1)}, {}, "unexpected key gpt.more"),
        (public_weights(), {"name": Command()}, "damaged, or more than tensors and plain values"),
    ],
)
def test_a_damaged_file_is_refused(state, sizes, message, tmp_path, capsys) -> None:
    write_lightning(tmp_path / "model.ckpt", state, **sizes)
    with pytest.raises(ValueError, match=message):
        ImageGpt().load(tmp_path, OPTIONS)
    assert "run" not in capsys.readouterr().out


def test_a_file_without_sizes_is_refused(tmp_path) -> None:
    torch.save({"state_dict": public_weights()}, tmp_path / "model.ckpt")
    with pytest.raises(ValueError, match=r"model\.ckpt: expected hyper_parameters"):
        ImageGpt().load(tmp_path, OPTIONS)
