"""Images of one prompt share what the target read of it; caches of several images."""

from collections import Counter
from dataclasses import replace

import pytest
import torch
from browser import only_in_all
from fakes import codes
from test_engine import METHODS, PLAIN, engine_of

from decoding.cache import CacheShape, CacheView, KVCache
from decoding.images import Job
from models.base import TransformerSpec
from runs.session import Session

TEXTS = ["a cat"] * 4 + ["two blue dogs on a mat"] * 3 + ["a cat", "a red cat", "a red cat"]
JOBS = [Job(str(number), text, 50 + number) for number, text in enumerate(TEXTS)]
CHANGES = 4  # how often another prompt begins
USED = {"plain": PLAIN} | {
    name: METHODS[name] for name in ("small eagle2", "adt", "jacobi", "block", "eagle recall")
}


@pytest.fixture(scope="module")
def alone(session: Session) -> dict[str, list[int]]:
    """The baseline's codes; every image has an engine of its own, which reads its prompt."""
    return {job.id: codes(engine_of(session, PLAIN, 1), [job])[job.id] for job in JOBS}


@pytest.fixture
def reads(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that read a prompt: tokens, target, rows of caches that begin again."""
    called: list[str] = []
    target = type(session.target)
    for owner, name in ((target, "prompt"), (target, "read"), (KVCache, "prefill")):
        real = getattr(owner, name)

        def counted(self, *arguments, name=name, real=real):
            called.append(name)
            return real(self, *arguments)

        monkeypatch.setattr(owner, name, counted)
    # length counts the tokens of the longest prompt, once per prompt that opens the batch
    monkeypatch.setattr(target, "length", lambda self, text: len(text) + 4)
    return called


@pytest.mark.parametrize("images", [3, *(pytest.param(n, marks=only_in_all) for n in (1, 2, 8))])
@pytest.mark.parametrize("name", USED)
def test_a_prompt_is_read_once_for_its_images(name, images, session, alone, reads) -> None:
    """Also by the drafter, where it keeps a cache."""
    method = USED[name]
    assert codes(engine_of(session, method, images), JOBS) == alone
    caches = 2 if method.drafted else 1
    assert Counter(reads) == {"prompt": CHANGES, "read": CHANGES, "prefill": CHANGES * caches}


def test_every_engine_reads_anew(session, alone, reads) -> None:
    """What an earlier call of `generate` has read is not trusted."""
    engine = engine_of(session)
    for _ in range(2):
        assert codes(engine, JOBS[:3]) == {job.id: alone[job.id] for job in JOBS[:3]}
    assert [name for name in reads if name != "prefill"] == ["prompt", "read"] * 2


@pytest.mark.parametrize("name", USED)
def test_a_free_row_does_not_keep_a_prompt_for_images_that_join(name, session, alone) -> None:
    """Rounds write over the first slots of a row without an image."""
    joining = iter([None, *JOBS[2:4]])  # row 0, which has read the prompt, is free for a round
    engine = engine_of(session, USED[name], 2)
    made = {
        image.job.id: image.codes.tolist()
        for step in engine.generate(JOBS[:2], joining)
        for image in step.finished
    }
    assert made == {key: alone[key] for key in made}
    assert len(made) >= 3


SPEC = TransformerSpec(
    vocab=30, hidden=16, intermediate=24, layers=2, heads=2, kv_heads=1, max_positions=64
)
CPU = torch.device("cpu")


@pytest.mark.parametrize("devices", [None, (CPU, torch.device("cpu", 0), CPU)])
@pytest.mark.parametrize("lengths", [[7, 7], [7, 4]])
def test_tokens_move_in_all_layers_on_all_devices(lengths, devices) -> None:
    spec = replace(SPEC, layers=3, layer_devices=devices)
    cache = KVCache(spec, CacheShape(2, 2, 20), torch.float64, CPU)
    for memory in cache.memory:
        memory.copy_(torch.randn(memory.shape, dtype=memory.dtype))
    before, path = torch.cat(cache.memory), torch.tensor([[0, 3], [0, 2]])
    cache.move(torch.tensor(lengths), path)
    after = torch.cat(cache.memory)
    for row in range(4):
        first, slots = lengths[row // 2], path[row // 2] + lengths[row // 2]
        expected = before[:, row].clone()
        expected[:, :, first : first + 2] = before[:, row][:, :, slots]
        assert torch.equal(after[:, row], expected)


def test_bf16_images_of_different_lengths_share_a_cache() -> None:
    """On a CPU their keys are kept in fp32, so what is written must be converted."""
    cache = KVCache(SPEC, CacheShape(2, 1, 20), torch.bfloat16, CPU)
    view, steps = CacheView(cache, torch.tensor([5, 3]), 5, 2), torch.arange(2)
    context = view.open(steps.expand(2, -1), (steps <= steps[:, None]).expand(2, -1, -1))
    new = torch.randn(2, SPEC.kv_heads, 2, SPEC.head_dim, dtype=torch.bfloat16)
    keys, _ = context.cache.write(0, new, new)
    assert torch.equal(keys[0, :, 5:7], new[0].to(keys.dtype))
    assert torch.equal(keys[1, :, 3:5], new[1].to(keys.dtype))
