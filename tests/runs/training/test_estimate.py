"""Memory of a training against what a training allocates."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from small import small_settings
from test_train import write_tokens
from torch.utils.flop_counter import FlopCounterMode

import main
from configs.training import TrainSettings
from decoding.sampling import SamplingDistribution
from drafters.training.heads import open_head
from drafters.training.lesson import optimizers_of
from drafters.training.losses import unroll
from drafters.training.rounds import DrawnRounds
from drafters.training.rows import join_prompts, target_rows
from drafters.training.windows import ROUNDS, predict, windows_of
from runs.session import open_session, open_target
from runs.training.estimate import (
    head_activations,
    memory,
    window_activations,
    work,
)
from runs.training.train import Training, read_tokens
from support.processes import ALONE
from support.progress import Progress


@pytest.fixture(scope="module")
def session(checkpoint):
    return open_session(small_settings(checkpoint, "fp32"))


def settings_of(checkpoint, **more: object) -> TrainSettings:
    return TrainSettings(
        tokens="-", output_dir="-", model_path=str(checkpoint), device="cpu", **more
    )


def made_tokens(session) -> SimpleNamespace:
    grid = session.target.grid
    about = {"rows": grid.rows, "columns": grid.columns, "vocab": session.target.vocab.size}
    return SimpleNamespace(captions=["a cat", "a longer caption"], about=about)


@pytest.mark.parametrize(("optimizer", "layers"), [("adamw", 1), ("adamw", 2), ("muon", 1)])
def test_weights_and_optimiser(optimizer, layers, checkpoint, session) -> None:
    settings = settings_of(checkpoint, optimizer=optimizer, layers=layers)
    head = open_head(settings, session.target)
    trained = [p for p in head.parameters() if p.requires_grad]
    optimizers = optimizers_of(settings, head)
    for p in trained:
        p.grad = torch.ones_like(p)
    for optimizer in optimizers:
        optimizer.step()
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    values = [value for state in states for value in state.values()]
    held = sum(value.nbytes for value in values if torch.is_tensor(value) and value.ndim)
    sizes = memory(settings, made_tokens(session))
    assert sizes["drafter weights and gradients"] == sum(p.nbytes + p.grad.nbytes for p in trained)
    assert sizes["averaged weights"] == sum(p.nbytes for p in trained)
    assert sizes["drafter embeddings"] == head.embedding.weight.nbytes
    # Muon leaves norms and biases to AdamW
    assert sizes["optimiser"] == pytest.approx(held, rel=0.05)
    assert sizes["target weights"] == sum(p.nbytes for p in session.target.transformer.parameters())


def kept_bytes(head: torch.nn.Module, run: Callable[[], object]) -> tuple[int, object]:
    """Of the tensors that autograd keeps for a run, the head's weights left out; and its result."""
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = run()
    weights = {p.untyped_storage().data_ptr() for p in head.parameters()}
    kept = {address: storage for address, storage in kept.items() if address not in weights}
    return sum(storage.nbytes() for storage in kept.values()), result


@pytest.mark.parametrize("depths", [1, 3])
def test_activations_of_the_drafter(depths, checkpoint, session) -> None:
    """Against the tensors that autograd keeps, each storage once."""
    settings, target = settings_of(checkpoint), session.target
    head = open_head(settings, target)
    prompt = join_prompts([target.prompt(text, 2) for text in ["a longer caption"] * 4])
    rows = target_rows(target, prompt, torch.zeros(4, target.grid.tokens, dtype=torch.long))
    kept, outputs = kept_bytes(head, lambda: unroll(head, rows, depths))
    assert outputs[0].requires_grad
    expected = head_activations(head.spec, len(rows.ids), (rows.prompt, rows.drafted), depths)
    assert 0.6 < kept / expected < 1.6


def packed_flops(inputs: torch.Size, *_, out_shape: torch.Size, **__) -> int:
    """Of a product by a packed weight, which torch does not count."""
    return 2 * inputs.numel() * out_shape[-1]


@pytest.mark.parametrize("layers", [1, 2])
def test_work_is_what_an_update_multiplies(layers, checkpoint, tmp_path) -> None:
    """Against torch's count of an update, without attention.

    Prompts are shorter than their bytes, and the head's first layer has no gradient for its input.
    """
    write_tokens(tmp_path / "tokens", "tiny", checkpoint, (4, 4), 8)
    given = {"layers": layers, "holdout": 2, "batch_size": 4, "eval_images": 0}
    settings = replace(settings_of(checkpoint, **given), tokens=str(tmp_path / "tokens"))
    tokens = read_tokens(settings)
    crew, hidden = ALONE, Progress("training", shown=False)
    training = Training(settings, open_target(settings.plain), tokens, crew, hidden)
    packed = torch.ops.mkldnn._linear_pointwise
    with FlopCounterMode(display=False, custom_mapping={packed: packed_flops}) as counter:
        training.lessons.update()
    products = (torch.ops.aten.mm, torch.ops.aten.addmm, torch.ops.aten.bmm, packed)
    counted = sum(counter.get_flop_counts()["Global"].get(product, 0) for product in products)
    assert 0.8 < counted / sum(work(settings, tokens).values()) < 1.05


def test_a_block_head_needs_room_for_its_windows(checkpoint, session) -> None:
    """Against the tensors that autograd keeps for the pass over rounds of an image."""
    settings, target = settings_of(checkpoint, drafter="block", ce_weight=0.5), session.target
    head, tokens = open_head(settings, target), SimpleNamespace(captions=["a cat"], seeds=[3])
    drawn = DrawnRounds(target, head, tokens, SamplingDistribution())([0])[0]
    rounds = windows_of(target, drawn, (drawn.readings * ROUNDS)[:ROUNDS], False)
    kept, predicted = kept_bytes(head, lambda: predict(head, target, rounds))
    assert predicted.requires_grad
    expected = window_activations(head.spec, 2, (rounds.prompt, target.grid.tokens))
    assert 0.6 < kept / expected < 1.6


def test_the_command_prints_it_and_stops(checkpoint, tmp_path, capsys) -> None:
    out, tokens = tmp_path / "out", tmp_path / "tokens"
    write_tokens(tokens, "tiny", checkpoint, (4, 4), 8)
    words = [f"--model_path={checkpoint}", f"--tokens={tokens}", f"--output_dir={out}"]
    assert main.main(["train_drafter", *words, "--device=cpu", "--estimate"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("target weights", "TFLOP", "together"))
    assert not out.exists()
