"""Training's slots and distributions are those of decoding; what a perfect drafter scores."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest
import torch
from direct import Image, Known, Rounds, session_reading
from families import SMALL
from small import open_lumina
from torch import Tensor

from decoding.noise import gumbel
from decoding.sampling import SamplingDistribution
from drafters.training.agreement import LevelFigures, draft_distributions, target_distribution
from drafters.training.losses import DraftLevels, EagleLoss, guided, overlap, unroll
from drafters.training.losses import agreement as agreement_of
from drafters.training.rows import Rows, join_prompts, target_rows
from models.base import Context, TransformerSpec
from runs.session import Session

CFG = 3.0
PLAIN = SamplingDistribution(cfg=CFG)
TEXTS = ["a cat", "two red dogs and a cat on the mat"]  # of different lengths


@pytest.fixture(scope="module", params=["tiny", "lumina_mgpt", "llamagen"])
def opened(request, tmp_path_factory) -> Session:
    """A small checkpoint of every way to read an image, in fp64."""
    small = SMALL[request.param]
    return small.open(small.settings(small.write(tmp_path_factory.mktemp("losses"))))


def codes_for(session: Session) -> Tensor:
    shape, generator = (len(TEXTS), session.target.grid.tokens), torch.Generator().manual_seed(0)
    return torch.randint(session.target.vocab.size, shape, generator=generator)


def rows_of(session: Session) -> Rows:
    prompts = [session.target.prompt(text, 2) for text in TEXTS]
    layers = session.drafter.spec.target_layers
    return target_rows(session.target, join_prompts(prompts), codes_for(session), layers)


def test_the_features_are_those_of_unpadded_rows(session) -> None:
    rows, codes = rows_of(session), codes_for(session)
    for number, text in enumerate(TEXTS):
        image = Image(session, PLAIN, text, codes[number].tolist())
        for row, expected in enumerate(image.features(len(codes[0]) - 1)):
            found = rows.features[2 * number + row, rows.starts[2 * number + row] :]
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("layers", [(), (1,)], ids=["features", "hidden states too"])
@torch.inference_mode()
def test_training_scores_what_the_drafter_computes(layers, opened) -> None:
    """DraftLevels 1 to 3 against those of a tree of one branch after every decided token."""
    opened = session_reading(opened, layers)
    codes, rows = codes_for(opened), rows_of(opened)
    distributions = draft_distributions(opened.target, opened.drafter, rows, PLAIN, 3)
    for number, text in enumerate(TEXTS):
        checked = 0
        for level, token, log_q in decoded_distributions(opened, text, codes[number], 3):
            expected = distributions[level - 1][number, token - level]
            torch.testing.assert_close(log_q, expected, rtol=0, atol=1e-6)
            checked += 1
        assert checked == sum(distribution.shape[1] for distribution in distributions)


def decoded_distributions(
    session: Session, text: str, codes: Tensor, levels: int
) -> Iterator[tuple[int, int, Tensor]]:
    """Level, number of the token and log q of a drafter that is told one token after the other."""
    target, prompt = session.target, session.target.prompt(text, 2)
    rows = target_rows(target, prompt, codes[None], session.drafter.spec.target_layers)
    rounds = Rounds(session, PLAIN, [Known(prompt, rows.features, codes, target.grid)])
    for decided in range(1, len(codes)):
        tree, picked = rounds.root(), torch.zeros(1, 1, dtype=torch.long)
        for level in range(1, min(levels, len(codes) - decided) + 1):
            yield level, decided + level - 1, rounds.expand(tree, [[0]])[0, 0]
            token = codes[decided + level - 1].view(1, 1, 1)
            tree = tree.extend(picked, token, -torch.ones(1, 1, 1, dtype=torch.float64))
        if decided < len(codes) - 1:
            rounds.commit([1])


@dataclass
class Blind:
    """A head that predicts zeros and keeps what it was given."""

    session: Session

    def __post_init__(self) -> None:
        network = self.session.drafter
        self.spec, self.fuse, self.ids, self.inputs = network.spec, network.fuse, [], []

    def __call__(self, ids: Tensor, inputs: Tensor, context: Context) -> Tensor:
        self.ids.append(ids)
        self.inputs.append(inputs)
        return torch.zeros_like(inputs)


def test_noise_spares_deeper_levels(session) -> None:
    rows, head = rows_of(session), Blind(session)
    unroll(head, rows, 2, torch.full((4, rows.drafted, 32), 0.25))
    given, first, (top, below) = rows.features[:, :-1], rows.prompt - 1, head.inputs
    assert torch.equal(top[:, :first], given[:, :first]), "the prompt stays as it is"
    assert torch.equal(top[:, first:], given[:, first:] + 0.25)
    assert below.shape[1] == rows.drafted - 1
    assert not below.any(), "below the root the head reads its own features"


def test_the_wrong_pairing_of_earlier_code(session) -> None:
    rows, head = rows_of(session), Blind(session)
    for shift in (1, 0):
        unroll(head, rows, 2, shift=shift)
    right, right_below, wrong, wrong_below = head.ids
    assert torch.equal(right, rows.ids[:, 1:]) and torch.equal(wrong, rows.ids[:, :-1])
    assert torch.equal(right_below, rows.ids[:, rows.prompt + 1 :])
    assert torch.equal(wrong_below, rows.ids[:, rows.prompt : -1])


@dataclass
class Perfect:
    """A head that knows the features to come; `wrong` is added to its predictions of slot `at`."""

    session: Session
    rows: Rows
    wrong: float = 0.0
    at: int = -1

    @property
    def spec(self) -> TransformerSpec:
        return self.session.drafter.spec

    def __call__(self, ids: Tensor, inputs: Tensor, context: Context) -> Tensor:
        features = self.rows.features[:, 1:].clone()
        features[:, self.at] += self.wrong
        return features[:, -ids.shape[1] :]

    def fuse(self, features: Tensor) -> Tensor:
        return features

    def loss(self) -> Tensor:
        return loss_of(self.session)(self, self.rows, None)[0]


def distributions(spread: float) -> Tensor:
    """Two distributions (2, 40, 12) of 12 codes, some of which neither or only one has."""
    generator = torch.Generator().manual_seed(0)
    logits = spread * torch.randn((2, 40, 12), generator=generator, dtype=torch.float64)
    logits[:, :, 3] = logits[0, :, 5] = logits[1, :, 7] = -torch.inf
    return logits.softmax(-1)


@pytest.mark.parametrize("spread", [0.3, 3.0])
def test_agreement_is_the_share_of_equal_choices_and_overlap_1_minus_tv(spread) -> None:
    p, q = distributions(spread)
    generator = torch.Generator().manual_seed(1)
    noise = -torch.empty((5_000, *p.shape), dtype=p.dtype).exponential_(generator=generator).log()
    same = ((p.log() + noise).argmax(-1) == (q.log() + noise).argmax(-1)).double().mean(0)
    found = agreement_of(p, q)
    torch.testing.assert_close(found, same, rtol=0, atol=0.04)
    apart = (p - q).abs().sum(-1) / 2
    torch.testing.assert_close(overlap(p, q), 1 - apart)
    torch.testing.assert_close(overlap(p, p), torch.ones_like(same))
    assert ((found >= (1 - apart) / (1 + apart) - 1e-9) & (found <= 1 - apart + 1e-9)).all()
    torch.testing.assert_close(agreement_of(p, p), torch.ones_like(same))


def test_agreement_has_the_gradient_of_its_value() -> None:
    p, q = (distribution[:5] for distribution in distributions(1.0))
    some = p[..., [0, 1, 2, 4, 6, 8]].softmax(-1)
    logits = q[..., [0, 1, 2, 4, 6, 8]].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda given: agreement_of(some, given.softmax(-1)), logits)


def loss_of(session: Session, levels: int = 2) -> EagleLoss:
    cpu = torch.device("cpu")
    return EagleLoss(session.target, DraftLevels.of(session.target.grid, levels, cpu), CFG)


def agreement(session: Session, head: object, rows: Rows) -> dict:
    """The figures of level 1, the target's choices drawn anew."""
    log_p = target_distribution(session.target, rows, PLAIN)
    drafts = draft_distributions(session.target, head, rows, PLAIN, 1)
    gathered = LevelFigures()
    for number in range(len(log_p)):
        noise = gumbel(number, "target", torch.arange(log_p.shape[1]), log_p.shape[2])
        gathered.add(1, drafts[0][number], log_p[number], noise)
    return gathered.table()[0]


def test_a_perfect_drafter(session) -> None:
    """Its first coupled candidate always hits, and no drafter has a smaller loss."""
    rows, random = rows_of(session), session.drafter
    perfect, loss = Perfect(session, rows), loss_of(session)
    figures = agreement(session, perfect, rows)
    assert figures["total_variation"] < 1e-6
    assert figures["coupled"]["hit_1"] == figures["coupled"]["hit_10"] == 1.0
    assert figures["topk"]["hit_1"] < figures["topk"]["hit_4"] <= 1.0
    best, parts = loss(perfect, rows, None)
    distribution = guided(session.target, loss.levels.target_features(rows), CFG).softmax(-1)
    entropy = torch.special.entr(distribution).sum(-1)
    torch.testing.assert_close(best, 0.1 * (entropy.mean() + entropy[:, 1:].mean()) / 2)
    assert not parts[:, 0].any() and loss(random, rows, None)[0] > best + 0.05
    whole = replace(loss, weights=(1.0, 0.1, 2.0))
    torch.testing.assert_close(whole(perfect, rows, None)[0], best, rtol=0, atol=1e-5)
    assert whole(random, rows, None)[1][:, 2].min() > 0.1


def test_the_first_slot_that_decoding_uses_gets_loss(session) -> None:
    rows = rows_of(session)
    best = Perfect(session, rows).loss()
    worse, same = (Perfect(session, rows, 2.0, rows.prompt - at).loss() for at in (1, 2))
    assert worse > best + 1.5 / (session.target.grid.tokens - 1) / 2 * 0.9, "smooth L1 of 2 is 1.5"
    assert same == best, "the prompt gets none"


def test_ends_of_rows_get_no_loss(lumina_folder) -> None:
    session = open_lumina(lumina_folder, "96x64")
    rows, columns = rows_of(session), session.target.grid.columns
    best, last = Perfect(session, rows).loss(), rows.prompt + columns
    end, token = (Perfect(session, rows, 2.0, last - at).loss() for at in (2, 1))
    assert end == best < token, "a row's last token is followed by its end, which nothing decides"
