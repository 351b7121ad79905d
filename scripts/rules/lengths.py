"""What rules accept on a model: tau of each at the same number of draft tokens."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib import import_module
from unittest.mock import patch

from configs.fields import ROOT
from configs.methods import MethodSettings
from configs.recipes import listed_method
from configs.schema import RunSettings
from decoding import images as engine_images
from decoding.images import Job
from decoding.noise import HostNoise
from decoding.rules.vvs import Vvs
from decoding.verifiers.host import ImageTree
from runs.drawing import image_jobs
from runs.prompts import prompt_items
from runs.session import Session, open_session

SEED = 9
TREE = "static:proposal=sampled:verifier="  # mc_sim_7b_63, 25 nodes
CHAIN = "jacobi:proposal=sampled:window=25:verifier="
LANTERN_PP = f"{TREE}lantern:lantern_residual=reference"
SKIPPING = "static:proposal=topk:verifier=vvs"
ROWS = (
    f"{TREE}sampled", f"{TREE}sjd_pac",
    f"{LANTERN_PP}:lantern_k=10:lantern_delta=5", f"{LANTERN_PP}:lantern_k=5:lantern_delta=20",
    f"{TREE}cool_sd", f"{TREE}cool_sd:cool_delta=2",
    f"{CHAIN}sampled", f"{CHAIN}cool_sd:cool_delta=2",
    "static:proposal=topk:verifier=rejection",
    "static:proposal=topk:verifier=lantern:lantern_k=10:lantern_delta=5",
    "static:proposal=topk:verifier=lantern:lantern_budget=per_candidate:lantern_residual=reference",
    "static:proposal=topk:verifier=lantern", SKIPPING,
    f"{TREE}path_explore", f"{TREE}path_relax", f"{TREE}gsd", f"{CHAIN}gsd",
    "static:proposal=coupled:verifier=exact", "jacobi:proposal=coupled:window=25:verifier=exact",
    "scd:window=25:verifier=scd", "scd_lumina:window=25:verifier=scd_lumina",
    "pac:nodes=25:verifier=pac", "pac_repaired:nodes=25:verifier=pac_repaired",
)  # fmt: skip
GUMBEL_COUPLED = f"{CHAIN}sampled"  # SCD-GS: as SJD, but a position keeps its noise
# How often a step of SJD decides 1, 2, ... tokens, Lumina-mGPT: KangJialiang/SJD-PAC 4fbc099,
# figs/make_figs.py, figure 1 of arXiv 2603.18599. They add up to 1.02.
PUBLISHED = (
    0.49, 0.22, 0.11, 0.075, 0.045, 0.028, 0.018, 0.012, 0.009, 0.006, 0.004, 0.003, 0.0022,
    0.0015, 0.001,
)  # fmt: skip
SJD = "jacobi:proposal=sampled:verifier=sampled:guess=random:window="
WINDOWS = (16, 32, 64)


class Skipped:
    """Stands for the method of VVS that skips rounds, and counts them."""

    def __init__(self) -> None:
        self.skip, self.rounds = Vvs.unverified, 0

    def __get__(self, rule: Vvs, kind: type) -> Callable:
        return partial(self, rule)

    def __call__(self, rule: Vvs, tree: ImageTree, noise: HostNoise) -> object:
        found = self.skip(rule, tree, noise)
        self.rounds += found is not None
        return found


def opened(images: int) -> tuple[Session, list[Job]]:
    """Return the included model and jobs of the first test prompts."""
    prompts = str(ROOT / "configs/prompts/tiny_test.txt")
    drafted = MethodSettings("eagle2")  # it loads the drafter
    run = RunSettings.of(prompt=prompts, num_images=images, seed=SEED, method=drafted)
    return open_session(run.engine), image_jobs(prompt_items(run.prompts), SEED)


def lengths(images: int) -> Iterator[dict]:
    """Yield tau of every method on the included model, over the same images."""
    for plugin in ("scd", "pac"):  # they register their methods
        import_module(f"scripts.rules.{plugin}")
    session, jobs = opened(images)
    for words in ROWS:
        with patch.object(Vvs, "unverified", Skipped()) as skipped:
            tokens = decided(session, words, jobs)
        verified = 1 - skipped.rounds / tokens.total()  # a skipped round takes no forward pass
        yield {"method": words, "tau": mean(tokens) / verified, "images": images}
        if words == GUMBEL_COUPLED:
            coupled = mean(decided(session, words, jobs, one_noise_a_position()))
            yield {"method": f"{words}, a position's noise kept", "tau": coupled, "images": images}


def step_lengths(images: int) -> Iterator[dict]:
    """Yield the published share of steps that decide 1, 2, ... tokens, and ours."""
    longest = len(PUBLISHED)
    tau = sum(n * share for n, share in enumerate(PUBLISHED, 1)) / sum(PUBLISHED)
    yield {"method": "SJD on Lumina-mGPT, published", "tau": tau, "shares": PUBLISHED}
    session, jobs = opened(images)
    for window in WINDOWS:
        words = f"{SJD}{window}"
        tokens = decided(session, words, jobs)
        shares = [tokens[count] / tokens.total() for count in range(1, longest + 1)]
        yield {"method": words, "tau": mean(tokens), "shares": shares, "steps": tokens.total()}


def decided(
    session: Session,
    words: str,
    jobs: Sequence[Job],
    changed: AbstractContextManager = nullcontext(),  # noqa: B008
) -> Counter[int]:
    """Return how many rounds of a method decided so many tokens."""
    engine = session.open_engine(listed_method(words, {}), images=min(len(jobs), 8))
    with changed:
        return Counter(line.accepted + 1 for step in engine.generate(jobs) for line in step.rounds)


def mean(tokens: Counter[int]) -> float:
    """Return tau."""
    return sum(count * rounds for count, rounds in tokens.items()) / tokens.total()


def one_noise_a_position() -> AbstractContextManager:
    """Drafts of all rounds are drawn with a position's one noise."""
    key = engine_images.stream_key
    return patch.object(engine_images, "stream_key", lambda seed, role: key(seed, "draft"))
