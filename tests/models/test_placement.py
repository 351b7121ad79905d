"""Guidance rows one after the other, tokens to pixels on the CPU, layers in several places:
the same tokens.
"""

import sys
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest
import torch
from browser import thinned
from counted import CountedCache

from configs.fields import SettingsError
from configs.schema import MethodSettings, RunSettings, SamplingSettings
from decoding.cache import CacheShape
from decoding.images import Job
from models.base import Context, Layers, PromptRows, TransformerSpec
from models.codecs.vqgan import ImageTokenizer
from models.guidance import SequentialGuidance
from models.placement import Load, dispatch, load_of, plan
from models.transformer import Transformer
from runs.session import Session, open_session
from support.devices import pick_device

CPU = torch.device("cpu")
JOBS = [
    Job(str(i), "word " * (i % 3) + str(i), 100 + i) for i in range(4)
]  # prompts of three lengths
METHODS = [
    MethodSettings("ar"),
    MethodSettings("adt"),
    MethodSettings("eagle2", depth=3, width=4, nodes=7),
]
GIB = 2**30


def settings(folder: Path, **flags: object) -> RunSettings:
    base = {"prompt": "a cat", "model_path": str(folder), "dtype": "fp64", "device": "cpu"}
    return RunSettings(**{**base, **flags})


def codes(session: Session, method: MethodSettings, **distribution: float) -> dict[str, list[int]]:
    engine = session.open_engine(method, SamplingSettings(**distribution))
    steps = engine.generate(JOBS)
    return {image.job.id: image.codes.tolist() for step in steps for image in step.finished}


@dataclass
class Counted:
    """A target that notes the rows of its forward passes."""

    target: object
    rows: list[int]

    def __getattr__(self, name: str) -> object:
        return getattr(self.target, name)

    def read(self, prompt: PromptRows, context: Context, layers: Layers = ()) -> torch.Tensor:
        self.rows.append(len(prompt.ids))
        return self.target.read(prompt, context, layers)

    def features(self, ids: torch.Tensor, context: Context, layers: Layers = ()) -> torch.Tensor:
        self.rows.append(len(ids))
        return self.target.features(ids, context, layers)


@pytest.mark.parametrize(
    ("method", "distribution", "images"),
    # each third has all methods, distributions and batches
    thinned(product(METHODS, [{}, {"temperature": 0.0}, {"cfg": 1.0}, {}], [1, 3])),
    ids=str,
)
def test_sequential_guidance_gives_the_same_tokens(
    method, distribution, images, checkpoint, session
) -> None:
    """fp64; three images of different lengths run apart in one batch."""
    target = Counted(session.target, [])
    apart = replace(
        session, settings=settings(checkpoint, batch_size=images), target=SequentialGuidance(target)
    )
    found = codes(apart, method, **distribution)
    assert found == codes(session, method, **distribution)
    assert max(target.rows) == images  # not 2 * images


def test_the_flag_wraps_the_target(checkpoint) -> None:
    opened = open_session(settings(checkpoint, cfg_mode="sequential", method=MethodSettings("ar")))
    assert isinstance(opened.target, SequentialGuidance)
    assert codes(opened, MethodSettings("ar")) == codes(
        replace(opened, target=opened.target.target), METHODS[0]
    )


@pytest.mark.parametrize(("place", "moves"), [("same", []), ("cpu", [CPU])])
def test_tokens_become_pixels_where_the_flag_says(
    place, moves, checkpoint, session, monkeypatch
) -> None:
    """No other device is here: what is tested is that the VQGAN is sent to the CPU,
    and that its pixels stay.
    """
    seen, to = [], ImageTokenizer.to
    monkeypatch.setattr(
        ImageTokenizer, "to", lambda images, device: seen.append(device) or to(images, device)
    )
    target = open_session(settings(checkpoint, vq_device=place, method=MethodSettings("ar"))).target
    assert seen == moves
    tokens = torch.arange(16).view(1, 16)
    assert torch.equal(target.to_image(tokens), session.target.to_image(tokens))


def test_a_device_map_needs_gpus(checkpoint, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(
        SettingsError, match="--device_map: 'auto' works only where CUDA devices are"
    ):
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
    """Eight units for a layer, two for its keys and values, fifteen for what stays on the first
    device, which takes the keys and values of homeless layers and a copy of one of them, too.
    """
    assert plan(4, Load(8, 2, 15), free) == places


def test_chameleon_7b_on_smaller_gpus() -> None:
    """bf16, one image with guidance:
    two GPUs of 24 GiB hold what one cannot with 8 images in a batch.
    """
    spec = TransformerSpec(65536, 4096, 11008, layers=32, heads=32, kv_heads=32, max_positions=4096)
    with torch.device("meta"):
        transformer = Transformer(spec, 8192).to(torch.bfloat16)
    one, eight = (load_of(transformer, 2 * images, 4096 + 59) for images in (1, 8))
    assert (one.layer, one.cache) == (2 * 202_399_744, 2 * 2 * 32 * 128 * 4155 * 2)
    assert set(plan(32, one, [24 * GIB])) == {0}
    assert set(plan(32, eight, [24 * GIB, 24 * GIB, 24 * GIB])) == {0, 1, 2}
    for load, size in ((one, 12), (eight, 48)):
        places = plan(32, load, [size * GIB])
        here, homeless = places.count(0), places.count(None)
        held = load.first + here * load.layer + 32 * load.cache + load.layer
        assert 0 < here < 32 == here + homeless and held <= size * GIB


def test_keys_and_values_lie_where_their_layers_are(session) -> None:
    """Two names of the CPU are two places to the cache:
    what is read and kept does not depend on the cut.
    """
    spec = session.target.spec
    cut = replace(spec, layer_devices=(torch.device("cpu", 0), CPU))
    whole, parts = (CountedCache(s, CacheShape(2, 2, 20), torch.float64, CPU) for s in (spec, cut))
    assert [len(memory) for memory in parts.memory] == [2, 2] and parts.nbytes == whole.nbytes
    generator = torch.Generator().manual_seed(0)
    for counts in ([3, 3], [1, 2], [2, 1]):  # equal lengths, then ragged ones
        new = torch.randn(
            2, 4, spec.kv_heads, 3, spec.head_dim, generator=generator, dtype=torch.float64
        )
        passes = [cache.chain(3).cache for cache in (whole, parts)]
        for layer in range(2):
            found = [each.write(layer, new[0] + layer, new[1] + layer) for each in passes]
            assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])
        for cache in (whole, parts):
            lengths = torch.tensor(cache.lengths)
            cache.move(lengths, torch.tensor([[0, 2, 2], [0, 1, 2]]))
            cache.advance(counts)
    assert torch.equal(whole.memory[0], torch.cat(parts.memory))


@pytest.mark.parametrize(
    ("mode", "places"),
    thinned(
        product(("parallel", "sequential"), (["cpu", "disk"], ["disk", "disk"], ["cpu", "cpu"]))
    ),
    ids=str,
)
def test_layers_that_accelerate_holds(mode, places, checkpoint, session, tmp_path) -> None:
    """Without GPUs: layers in memory and on the disk.

    Features come back on the head's device, tokens are the same.
    """
    pytest.importorskip("accelerate")
    opened = open_session(settings(checkpoint, cfg_mode=mode))
    target = getattr(opened.target, "target", opened.target)
    dispatch(target, places, CPU, str(tmp_path / "offload"))
    held = [block.mlp.down.weight.device.type for block in target.transformer.blocks.blocks]
    assert held == ["meta" if place == "disk" else "cpu" for place in places]
    assert target.spec.layer_devices == (CPU, CPU)
    for method in METHODS[:2]:
        assert codes(opened, method) == codes(session, method)


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
    with pytest.raises(
        SettingsError, match="--device: expected auto or cpu, got 'cuda:2'. PyTorch found 2 GPUs"
    ):
        pick_device("cuda:2")
