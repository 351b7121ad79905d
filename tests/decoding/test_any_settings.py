"""Any method with any settings gives the tokens of plain decoding, in fp64, for random models.

Hypothesis draws cases: a small model of every family, flags, prompts, batches, calls of one engine.
A failure is shrunk and printed as a command that repeats it. `make test-all` draws 50 times as many
cases; ADT_CASES=N draws N of every family.
"""

import json
import os
import shlex
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

import pytest
import torch
from browser import ALL, only_in_all
from fakes import Padded
from families import SMALL
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from small import open_lumina
from torch import Tensor

from configs.fields import SettingsError
from configs.methods import METHODS, TREES, MethodSettings
from configs.rules import PROPOSALS, RULES, LanternSettings
from decoding import noise
from decoding.cache import KVCache
from decoding.images import FinishedImage, Job, RoundStats
from decoding.noise_table import NoiseTable
from decoding.round import RoundResult
from decoding.verifiers.base import Verdict
from decoding.verifiers.exact import Exact
from models.guidance import SequentialGuidance
from runs.check.loaded import first_rows
from runs.session import Session

FILE = "tests/decoding/test_any_settings.py"
Case = dict[str, Any]  # as `cases` draws it: JSON
CASES = int(os.environ.get("ADT_CASES", 300 if ALL else 6))  # of every family
NARROW = "lumina_mgpt, rows of two"  # whose trees cross several row ends at once
FAMILIES = [*(name for name in SMALL if " of " not in name), NARROW]  # one layout each
PROMPTS = "a cat", "A red cat", "two blue dogs on a mat", "dog"


def numbers(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high).map(lambda number: round(number, 2))


# Flags of methods. A method with a flag that is not here fails: add what the flag may be.
FLAGS: dict[str, st.SearchStrategy] = {
    "depth": st.integers(1, 7),
    "width": st.integers(1, 5),
    "nodes": st.integers(1, 30),
    "window": st.integers(1, 20),
    "head_depth": st.integers(1, 4),
    "tree": st.sampled_from(list(TREES)),
    "guess": st.sampled_from(["above", "left", "random"]),
    "recall_numbers": st.lists(numbers(-3, 3), min_size=6, max_size=6).map(
        lambda six: "/".join(map(str, six))
    ),
}
SAMPLING: dict[str, st.SearchStrategy] = {
    "temperature": st.just(0.0) | numbers(0.3, 2.0),
    "top_k": st.integers(0, 24),
    "top_p": numbers(0.05, 1.0),
    "cfg": st.just(1.0) | numbers(0.5, 6.0),
}


@st.composite
def some_of(draw: Callable, choices: dict[str, st.SearchStrategy]) -> dict[str, Any]:
    """Draw values of some of these flags; the fewer, the simpler."""
    return draw(st.fixed_dictionaries({}, optional=choices))


@st.composite
def adt_flags(draw: Callable) -> dict[str, Any]:
    """Draw numbers of ADT-Tree whose bounds hold each other."""
    flags = draw(
        some_of(
            {
                "adt_beta": numbers(0, 1),
                "adt_l_d": st.integers(0, 3),
                "adt_l_k": st.integers(0, 3),
                "adt_init": st.sampled_from(["horizontal", "vertical", "random", "fixed"]),
                "adt_adapt": st.sampled_from(["acceptance", "random", "confidence", "none"]),
                "adt_alpha": st.sampled_from(["previous", "neighbour"]),
            }
        )
    )
    for axis in "dk":
        if draw(st.booleans()):
            least, first, most = sorted(draw(st.tuples(*[st.integers(1, 6)] * 3)))
            bounds = {"min": least, "init": first, "max": most}
            flags |= {f"adt_{axis}_{name}": number for name, number in bounds.items()}
    return flags


@st.composite
def method_flags(draw: Callable) -> dict[str, Any]:
    """Draw a method, flags that it has, and a rule that goes with them."""
    method = draw(st.sampled_from(list(METHODS)))
    flags = {"method": method}
    if not METHODS[method].speculative:
        return flags
    own = {flag: FLAGS[flag] for flag in METHODS[method].defaults if flag != "proposal"}
    flags |= draw(some_of(own)) | (draw(adt_flags()) if method == "adt" else {})
    proposal = flags["proposal"] = draw(st.sampled_from(list(PROPOSALS)))
    rules = [
        name
        for name, rule in RULES.items()
        if rule.fits(method, proposal) and rule.settings is not LanternSettings  # needs a table
    ]
    return flags | {"verifier": draw(st.sampled_from(rules))}


@st.composite
def cases(draw: Callable, model: str) -> Case:
    """Draw a case of a model."""
    sampling = draw(some_of(SAMPLING))
    flags = draw(method_flags())
    if model in ("glm_image", "image_gpt"):  # which have no guidance
        sampling["cfg"] = 1.0
    if model == "image_gpt" and flags.get("tree") == "medusa_2_7b_63":
        del flags["tree"]  # whose root has more children than this model has codes
    job = st.tuples(st.sampled_from(PROMPTS), st.integers(0, 99)).map(list)
    return {
        "model": model,
        "flags": flags,
        "sampling": sampling,
        "tokens": draw(st.sampled_from([6, 10, 99])),  # of an image at least; whole rows of it
        "batch": draw(st.integers(1, 3)),
        "calls": [
            draw(st.lists(job, min_size=1, max_size=3)),
            *draw(st.lists(st.lists(job, max_size=2), max_size=1)),
        ],
        "rounds": draw(st.none() | st.integers(1, 4)),  # after which the first call is given up
        "sequential": draw(st.booleans()),  # guidance rows
        "early": draw(st.booleans()),  # as a GPU replays rounds, before the last outcome is read
        "window": draw(st.booleans()),  # noise of few positions at a time, as large models have
    }


@pytest.fixture(scope="module")
def opened(tmp_path_factory, lumina_folder) -> Callable[[str], Session]:
    """Open a family once, with its drafter."""

    @cache
    def open_family(name: str) -> Session:
        if name == NARROW:
            return open_lumina(lumina_folder, "32x96")
        folder = SMALL[name].write(tmp_path_factory.mktemp("family"))
        return SMALL[name].load(folder, MethodSettings("eagle2"))

    return open_family


Traced = dict[str, tuple[FinishedImage, list[RoundStats]]]  # by job


def traced(engine, jobs: list[Job], most: int | None = None) -> Traced:
    """Generate images, with the statistics of their rounds; most: rounds of the call."""
    rounds: dict[str, list[RoundStats]] = {job.id: [] for job in jobs}
    done: Traced = {}
    for number, step in enumerate(engine.generate(jobs), 1):
        for stats in step.rounds:
            rounds[stats.id].append(stats)
        done |= {image.job.id: (image, rounds[image.job.id]) for image in step.finished}
        if number == most:
            break
    return done


def difference(session: Session, case: Case) -> str:
    """Decode a case; return what differs from plain decoding, or "".

    Rules that may give other tokens than plain decoding, whose distribution is tested elsewhere,
    are compared with themselves, image by image.
    """
    method = MethodSettings.of(case["flags"])
    base = replace(session.settings.sampling, **case["sampling"])
    whole = session.target
    session = replace(session, target=first_rows(whole, case["tokens"]))
    calls = [
        [Job(f"{call}.{number}", *job) for number, job in enumerate(jobs)]
        for call, jobs in enumerate(case["calls"])
    ]
    truth = MethodSettings("ar") if method.same_tokens(base.temperature) else method
    expected = {
        job.id: traced(session.open_engine(truth, base, 1), [job])[job.id][0].codes.tolist()
        for job in sum(calls, [])
    }
    with pytest.MonkeyPatch.context() as patch:
        if case["window"]:
            patch.setattr(noise, "_TABLE_BYTES", 0)
            patch.setattr(noise, "_AHEAD", 1)
        if case["sequential"]:
            target = first_rows(SequentialGuidance(whole), case["tokens"])
            session = replace(session, target=target)
        engine = session.open_engine(method, base, case["batch"])
        if case["early"]:
            engine.runner = Padded()
        for number, jobs in enumerate(calls):
            most = case["rounds"] if number == 0 and len(calls) > 1 else None
            images = traced(engine, jobs, most)
            if most is None and images.keys() != {job.id for job in jobs}:
                return f"images {sorted(images)} of {len(jobs)}"
            for name, (image, rounds) in images.items():
                if image.codes.tolist() != expected[name]:
                    return f"image {name}: {image.codes.tolist()}, not {expected[name]}"
                if problem := odd_figures(image, rounds):
                    return f"image {name}: {problem}"
    return ""


def odd_figures(image: FinishedImage, rounds: list[RoundStats]) -> str:
    """Return which statistics of an image contradict its tokens, or ""."""
    position = 1
    for number, stats in enumerate(rounds):
        if (stats.round, stats.position) != (number, position):
            return f"round {number} at position {position} is told as {stats}"
        if not (
            stats.accepted <= stats.verified_depth <= stats.drafted_depth
            and len(stats.top1) == stats.accepted + 1
        ):
            return f"{stats}"
        position += stats.accepted + 1
    if position != len(image.codes) or image.tau != (position - 1) / len(rounds):
        return f"tau {image.tau} with {len(rounds)} rounds for {len(image.codes)} codes"
    return ""


def command(case: Case) -> str:
    """Return the command that repeats a case."""
    return f"ADT_CASE={shlex.quote(json.dumps(case))} python -m pytest {FILE} -k one_case"


def drawn(cases: int, phases: Iterable[Phase] = tuple(Phase)) -> settings:
    return settings(
        phases=phases,
        max_examples=cases,
        deadline=None,
        database=None,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),
    )


def found(count: int, fails: Callable[[Case], bool]) -> Case:
    """Return the first of so many cases that fails, the same in every run."""
    budget = drawn(count, [Phase.generate])
    return find(cases("tiny"), fails, settings=budget, random=Random(0))


def assert_same(session: Session, case: Case) -> None:
    if problem := difference(session, case):
        raise AssertionError(f"{problem}\n{command(case)}")


def assert_all_same(model: str, session: Session, count: int = CASES) -> None:
    @drawn(count)
    @given(cases(model))
    def same(case: Case) -> None:
        assert_same(session, case)

    same()


@pytest.mark.parametrize(
    "model", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in FAMILIES]
)
def test_tokens_are_those_of_plain_decoding(model, opened) -> None:
    assert_all_same(model, opened(model))


def test_one_case(opened) -> None:
    """The case that a failure has printed; without ADT_CASE a harmless one."""
    text = os.environ.get("ADT_CASE")
    case = json.loads(text) if text else found(1, lambda case: True)
    assert_same(opened(case["model"]), case)


def accepts_a_wrong_token(patch: pytest.MonkeyPatch, draft: int = 3 if ALL else 2) -> None:
    """The third accepted draft of a round becomes another token; that of fewer cases the second."""
    judge = Exact.__call__

    def wrong(self, *given: object) -> Verdict:
        verdict = judge(self, *given)
        emitted = verdict.emitted.clone()
        emitted[verdict.accepted >= draft, draft - 1 : draft] = 0
        return replace(verdict, emitted=emitted)

    patch.setattr(Exact, "__call__", wrong)


def forgets_to_move(patch: pytest.MonkeyPatch) -> None:
    """Accepted keys and values stay in the slots of the tree."""
    patch.setattr(KVCache, "move", lambda *_: None)


def mixes_up_images(patch: pytest.MonkeyPatch) -> None:
    """The second image of a batch has the noise of the first."""
    fill = NoiseTable.fill

    def wrong(self, image: int, seed: int) -> None:
        fill(self, image, self.seeds[0] if image == 1 else seed)

    patch.setattr(NoiseTable, "fill", wrong)


def keeps_the_root(patch: pytest.MonkeyPatch) -> None:
    """Rounds that begin early have the root of the last one."""
    inputs = RoundResult.next_inputs

    def wrong(self) -> Tensor:
        return torch.cat([self.round.inputs.table[:, :1], inputs(self)[:, 1:]], 1)

    patch.setattr(RoundResult, "next_inputs", wrong)


FAULTS = [accepts_a_wrong_token, forgets_to_move, mixes_up_images, keeps_the_root]


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_faults_are_found(fault, opened, monkeypatch) -> None:
    """By 15 cases of every family: a few runs of `make test`."""
    session = opened("tiny")
    fault(monkeypatch)
    case = found(15 * len(FAMILIES), lambda case: difference(session, case) != "")
    monkeypatch.undo()
    assert not difference(session, case)


@only_in_all
def test_a_failure_shrinks_to_a_command(opened, monkeypatch) -> None:
    forgets_to_move(monkeypatch)
    with pytest.raises(AssertionError) as raised:
        assert_all_same("tiny", opened("tiny"), 50)
    printed = next(line for line in str(raised.value).splitlines() if line.startswith("ADT_CASE="))
    variable, *words = shlex.split(printed)
    case = json.loads(variable.removeprefix("ADT_CASE="))
    assert len(sum(case["calls"], [])) == 1 and words[:3] == ["python", "-m", "pytest"]
    assert difference(opened("tiny"), case)
    monkeypatch.undo()
    assert not difference(opened("tiny"), case)


def test_a_tree_that_is_wider_than_the_models_codes_is_refused(opened) -> None:
    method = MethodSettings("static", tree="medusa_2_7b_63")
    with pytest.raises(SettingsError, match="--tree: expected a tree of at most 7 children a node"):
        opened("image_gpt").open_engine(method)
