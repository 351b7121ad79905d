"""Guidance rows in turn, pixels on the CPU, layers in several places: the same tokens."""

import sys
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from browser import ALL, thinned
from counted import CountedCache
from fakes import codes
from families import PLAIN, decoded
from small import small_settings

from configs.fields import SettingsError
from configs.schema import MethodSettings, RunSettings, SamplingSettings
from decoding.cache import CacheShape
from decoding.images import Job
from models.base import TransformerSpec
from models.codecs.vqgan import ImageTokenizer
from models.guidance import SequentialGuidance
from models.placement import Load, dispatch, load_of, plan
from models.transformer import Transformer
from runs.session import open_session
from support.devices import pick_device

CPU = torch.device("cpu")
# prompts of three lengths, of which two images share the last
JOBS = [Job(str(i), "a" + " word" * min(i, 2), 100 + i) for i in range(4)]
METHODS = [PLAIN, MethodSettings("adt")]
METHODS += [MethodSettings("eagle_recall", depth=4, width=3, nodes=14, head_depth=2)]
GIB = 2**30


def settings(folder: Path, method: MethodSettings = METHODS[1], **flags: object) -> RunSettings:
    return replace(small_settings(folder).with_method(method), **flags)


@pytest.mark.parametrize(
    ("method", "distribution", "images"),
    # each third has all methods, distributions and batches
    thinned(product(METHODS, [{}, {"temperature": 0.0}, {"cfg": 1.0}, {}], [1, 3])),
    ids=str,
)
def test_sequential_guidance_gives_the_same_tokens(method, distribution, images, session) -> None:
    """fp64; three images of different lengths run apart in one batch."""
    rows, sampling = [], SamplingSettings(**distribution)
    expected = codes(session.open_engine(method, sampling), JOBS)
    apart = replace(session, target=SequentialGuidance(session.target))
    blocks = session.target.transformer.blocks
    hook = blocks.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    assert codes(apart.open_engine(method, sampling, images), JOBS) == expected
    hook.remove()
    assert max(rows) == images  # not 2 * images


def test_the_flag_wraps_the_target(checkpoint) -> None:
    opened = open_session(settings(checkpoint, cfg_mode="sequential", method=PLAIN))
    assert isinstance(opened.target, SequentialGuidance)


@pytest.mark.parametrize(("place", "moves"), [("same", []), ("cpu", [CPU])])
def test_tokens_become_pixels_where_the_flag_says(
    place, moves, checkpoint, session, monkeypatch
) -> None:
    """No other device is here: the VQGAN is sent to the CPU, and its pixels stay."""
    seen, to = [], ImageTokenizer.to
    monkeypatch.setattr(
        ImageTokenizer, "to", lambda images, device: seen.append(device) or to(images, device)
    )
    target = open_session(settings(checkpoint, vq_device=place, method=PLAIN)).target
    assert seen == moves
    tokens = torch.arange(16).view(1, 16)
    assert torch.equal(target.to_image(tokens), session.target.to_image(tokens))


def test_a_device_map_needs_gpus(checkpoint, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    message = "--device_map: 'auto' works only where CUDA devices are"
    with pytest.raises(SettingsError, match=message):
        open_session(settings(checkpoint, device="auto", device_map="auto"))


@pytest.mark.parametrize(
    ("free", "places"),
    [
        ([60], [0, 0, 0, 0]),
        ([35, 20], [0, 0, 1, 1]),
        ([25, 12, 100], [0, 1, 2, 2]),
        ([10, 20, 20], [1, 1, 2, 2]),
        ([45, 5], [0, None, None, None]),
        ([35, 5], [None] * 4),
        ([0], [None] * 4),
    ],
)
def test_plan(free, places) -> None:
    """The first device takes the keys and values of homeless layers and a copy of one, too."""
    assert plan(4, Load(layer=8, cache=2, first=15), free) == places


def test_chameleon_7b_on_smaller_gpus() -> None:
    """In bf16, with guidance: eight images in a batch need more than one GPU of 24 GiB."""
    spec = TransformerSpec(65536, 4096, 11008, layers=32, heads=32, kv_heads=32, max_positions=4096)
    with torch.device("meta"):
        transformer = Transformer(spec, 8192).to(torch.bfloat16)
    one, eight = (load_of(transformer, 2 * images, 4096 + 59, 2 * GIB) for images in (1, 8))
    assert (one.layer, one.cache) == (2 * 202_399_744, 2 * 2 * 32 * 128 * 4155 * 2)
    assert set(plan(32, one, [24 * GIB])) == {0}
    assert set(plan(32, eight, [24 * GIB, 24 * GIB, 24 * GIB])) == {0, 1, 2}
    for load, size in ((one, 12), (eight, 48)):
        places = plan(32, load, [size * GIB])
        here, homeless = places.count(0), places.count(None)
        held = load.first + here * load.layer + 32 * load.cache + load.layer
        assert 0 < here < 32 == here + homeless and held <= size * GIB


def test_pixels_take_room_on_the_first_gpu(session) -> None:
    """As much as the codec's shapes say; its weights stay where they are."""
    images, transformer = session.target.images, session.target.transformer
    pixels = images.decoding_bytes(session.target.grid)
    finest = 4 * images.config.ch * images.config.resolution**2  # a tensor of its last level
    assert finest < pixels < 10 * finest and images.codebook.device == CPU
    less, more = (load_of(transformer, 2, 100, taken) for taken in (0, pixels))
    assert more == replace(less, first=less.first + pixels)


def test_keys_and_values_lie_where_their_layers_are(session) -> None:
    spec = session.target.spec
    cut = replace(spec, layer_devices=(torch.device("cpu", 0), CPU))
    whole, parts = (CountedCache(s, CacheShape(2, 2, 20), torch.float64, CPU) for s in (spec, cut))
    assert [len(memory) for memory in parts.memory] == [2, 2] and parts.nbytes == whole.nbytes
    generator = torch.Generator().manual_seed(0)
    for counts in ([3, 3], [1, 2], [2, 1]):  # equal lengths, then ragged ones
        new = torch.randn(2, 4, spec.kv_heads, 3, spec.head_dim, generator=generator).double()
        passes = [cache.chain(3).cache for cache in (whole, parts)]
        for layer in range(2):
            found = [each.write(layer, new[0] + layer, new[1] + layer) for each in passes]
            assert all(map(torch.equal, *found))
        for cache in (whole, parts):
            cache.advance(counts)
    assert torch.equal(whole.memory[0], torch.cat(parts.memory))


HELD = [["cpu", "disk"], ["disk", "disk"], ["cpu", "cpu"]]
HOLDING = [("tiny", *case) for case in product(("sequential", "parallel"), HELD)]
HOLDING += [("emu3", "sequential", ["cpu", "disk"]), ("janus_pro", "parallel", ["disk", "cpu"])]


@pytest.mark.parametrize(("name", "mode", "places"), thinned(thinned(HOLDING)), ids=str)
def test_layers_that_accelerate_holds(name, mode, places, opened, tmp_path) -> None:
    plain = decoded(opened[name])
    session = open_session(replace(opened[name].settings, cfg_mode=mode))
    target = getattr(session.target, "target", session.target)
    dispatch(target, places, CPU, str(tmp_path / "offload"))
    held = [block.mlp.down.weight.device.type for block in target.transformer.blocks.blocks]
    assert held == ["meta" if place == "disk" else "cpu" for place in places]
    assert target.spec.layer_devices == (CPU, CPU)
    for method in METHODS if ALL else METHODS[1:2]:
        assert all(map(torch.equal, decoded(session, method), plain))


def test_without_accelerate_the_error_names_it(session, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ValueError, match="--device_map.*accelerate"):
        dispatch(session.target, ["cpu", "cpu"], CPU)


@pytest.mark.parametrize(
    ("name", "found"), [("auto", "cuda:0"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1")]
)
def test_devices_have_numbers(name, found, monkeypatch) -> None:
    """torch sets no current device without its number."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert str(pick_device(name)) == found and chosen == [torch.device(found)]
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert str(pick_device(name)) == ("cuda:1" if name != "cuda:0" else found)
    message = "--device: expected auto or cpu, got 'cuda:2'. PyTorch found 2 GPUs"
    with pytest.raises(SettingsError, match=message):
        pick_device("cuda:2")
