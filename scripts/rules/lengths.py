"""What rules accept on a model: tau of each at the same number of draft tokens."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from unittest.mock import patch

from configs.fields import ROOT
from configs.methods import MethodSettings
from configs.recipes import listed_method
from configs.schema import RunSettings
from decoding import images as engine_images
from decoding.images import Job
from runs.drawing import image_jobs
from runs.prompts import prompt_items
from runs.session import Session, open_session

SEED = 9
TREE = "static:proposal=sampled:verifier="  # mc_sim_7b_63, 25 nodes
CHAIN = "jacobi:proposal=sampled:window=25:verifier="
LANTERN_PP = f"{TREE}lantern:lantern_residual=reference"
ROWS = (
    f"{TREE}sampled", f"{TREE}sjd_pac",
    f"{LANTERN_PP}:lantern_k=10:lantern_delta=5", f"{LANTERN_PP}:lantern_k=5:lantern_delta=20",
    f"{TREE}cool_sd", f"{TREE}cool_sd:cool_delta=2",
    f"{CHAIN}sampled", f"{CHAIN}cool_sd:cool_delta=2",
    "static:proposal=topk:verifier=rejection",
    "static:proposal=topk:verifier=lantern:lantern_k=10:lantern_delta=5",
    f"{TREE}path_explore", f"{TREE}path_relax", f"{TREE}gsd", f"{CHAIN}gsd",
    "static:proposal=coupled:verifier=exact", "jacobi:proposal=coupled:window=25:verifier=exact",
)  # fmt: skip
GUMBEL_COUPLED = f"{CHAIN}sampled"  # SCD-GS: as SJD, but a position keeps its noise


def lengths(images: int) -> Iterator[dict]:
    """Yield tau of every method on the included model, over the same images."""
    prompts = str(ROOT / "configs/prompts/tiny_test.txt")
    drafted = MethodSettings("eagle2")  # it loads the drafter
    run = RunSettings.of(prompt=prompts, num_images=images, seed=SEED, method=drafted)
    session, jobs = open_session(run.engine), image_jobs(prompt_items(run.prompts), SEED)
    for words in ROWS:
        yield {"method": words, "tau": tau(session, words, jobs), "images": images}
        if words == GUMBEL_COUPLED:
            coupled = tau(session, words, jobs, one_noise_a_position())
            yield {"method": f"{words}, a position's noise kept", "tau": coupled, "images": images}


def tau(
    session: Session,
    words: str,
    jobs: Sequence[Job],
    changed: AbstractContextManager = nullcontext(),  # noqa: B008
) -> float:
    """Return the tokens that a method decides per round."""
    engine = session.open_engine(listed_method(words, {}), images=min(len(jobs), 8))
    with changed:
        made = [image for step in engine.generate(jobs) for image in step.finished]
    rounds = sum(image.target_forwards - 1 for image in made)
    return sum(len(image.codes) - 1 for image in made) / rounds


def one_noise_a_position() -> AbstractContextManager:
    """Drafts of all rounds are drawn with a position's one noise."""
    key = engine_images.stream_key
    return patch.object(engine_images, "stream_key", lambda seed, role: key(seed, "draft"))
