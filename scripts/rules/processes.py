"""Rules that one round does not show: how drafts come from the round before, and what noise they
share. Each is enumerated until its first tokens are decided, or has a closed form.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from decoding.verifiers.host import Array, point_mass, residual
from scripts.rules.enumeration import Chance, Uniform, off, runs
from scripts.rules.rounds import Distributions


class Draft(NamedTuple):
    """A drafted token and the distribution that it is judged by."""

    token: int
    q: Array


# Of a position that stays undecided: chance, image position, the draft there (None: none), the
# target's new distribution -> the next draft.
Redraw = Callable[[Chance, int, Draft | None, Array], Draft]


def drawn_anew(chance: Chance, position: int, draft: Draft | None, p: Array) -> Draft:
    """SJD (b389cfb): every iteration samples all positions again."""
    return Draft(chance.choose(p), p)


class OneNumber:
    """SCD's Gumbel coupling (7322379, lumina1): a position keeps its noise until it is decided.

    The noise is a uniform number here, which a token's interval of p contains: that the number does
    not depend on what was drafted before, on which losslessness rests, is the same.
    """

    def __init__(self) -> None:
        self.numbers: dict[int, list[float]] = {}

    def __call__(self, chance: Chance, position: int, draft: Draft | None, p: Array) -> Draft:
        number = Uniform(chance, self.numbers.setdefault(position, [0.0, 1.0]))
        below = p.cumsum()
        return Draft(next((t for t in range(len(p) - 1) if number < below[t]), len(p) - 1), p)


def kept_if_accepted(chance: Chance, position: int, draft: Draft | None, p: Array) -> Draft:
    """SCD's maximal coupling, as in its code for Cosmos: a draft is judged and kept, else redrawn.

    What comes out has the distribution p, by which it is judged next.
    """
    token, _ = _coupled(chance, draft, p)
    return Draft(token, p)


def kept_with_its_q(chance: Chance, position: int, draft: Draft | None, p: Array) -> Draft:
    """The same as in its code for Lumina-mGPT: a kept draft keeps the distribution it came from.

    The next iteration divides by that, though the draft went through an acceptance since.
    """
    token, accepted = _coupled(chance, draft, p)
    return Draft(token, draft.q if draft is not None and accepted else p)


def _coupled(chance: Chance, draft: Draft | None, p: Array) -> tuple[int, bool]:
    if draft is None:
        return chance.choose(p), False
    kept = min(1.0, p[draft.token] / draft.q[draft.token])
    if chance.choose((kept, 1 - kept)) == 0:
        return draft.token, True
    return chance.choose(residual(p, draft.q)), False


def iterated(
    laws: Distributions, window: int, tokens: int, redraw: Callable[[], Redraw]
) -> tuple[float, float]:
    """Enumerate Jacobi iterations until so many tokens are decided.

    A new position begins with token 0, judged as certain; published code begins with a random one.

    Returns:
        The total variation of the first tokens' joint distribution from the target's, and tau.
    """
    law = laws.log_p.exp().numpy()
    joint, iterations = np.zeros((laws.vocab,) * tokens), 0.0

    def program(chance: Chance) -> tuple[list[int], int]:
        decided: list[int] = []
        drafts: list[Draft | None] = []
        again, count = redraw(), 0
        while len(decided) < tokens:
            drafts += [None] * (window - 1 - len(drafts))
            decided, drafts = iteration(chance, law, decided, drafts, again, tokens)
            count += 1
        return decided, count

    for (decided, count), weight in runs(program):
        joint[tuple(decided[:tokens])] += weight
        iterations += weight * count
    return off(joint, laws), tokens / iterations


def iteration(
    chance: Chance,
    law: Array,  # (rows, vocab) the target's distributions, as in `Distributions`
    decided: list[int],
    drafts: list[Draft | None],
    again: Redraw,
    tokens: int,  # later positions do not matter
) -> tuple[list[int], list[Draft | None]]:
    """Return the decided tokens after one more pass, and the drafts of the next positions."""
    vocab, first, row = law.shape[1], len(decided), 0
    for token in decided:
        row = row * vocab + 1 + token
    following: list[Draft | None] = []
    decided, refused = list(decided), False
    for place, found in enumerate([*drafts, None]):
        position = first + place
        if position >= tokens:
            break
        p, last = law[row], place == len(drafts)
        draft = found or Draft(0, point_mass(0, vocab))
        if refused:
            following.append(again(chance, position, found, p))
        elif last:
            decided.append(again(chance, position, None, p).token)
        else:
            accepted = min(1.0, p[draft.token] / draft.q[draft.token])
            if chance.choose((accepted, 1 - accepted)) == 0:
                decided.append(draft.token)
            else:
                decided.append(chance.choose(residual(p, draft.q)))
                refused = True
        row = row * vocab + 1 + draft.token
    return decided, following


def proactive_siblings(p0: Array, p1: Array, p2: Array, published: bool) -> float:
    """Return the distance of SJD-PAC's second doubt: two siblings of a position, then one choice.

    A draft from p0 is judged by p1 and kept, or drawn from what is left. A sibling joins it: as
    published, from what is left, though it is judged as if it were drawn from p1 without the first
    (else it is drawn like that). Then p2 chooses: the first accepted sibling, which is the right
    rule.
    """
    vocab, found = len(p0), np.zeros(len(p0))

    def program(chance: Chance) -> Array:
        first, kept = _coupled(chance, Draft(chance.choose(p0), p0), p1)
        judged = p1.copy()
        judged[first] = 0
        judged /= judged.sum()
        source = judged
        if published:
            source = residual(p1, p0).copy()
            if not kept:
                source[first] = 0
        second = chance.choose(source / source.sum()) if source.sum() > 1e-15 else None
        p = p2
        for token, q in ((first, p1), (second, judged)):
            if token is None:
                break
            accepted = min(1.0, p[token] / q[token]) if q[token] else 0.0
            if chance.choose((accepted, 1 - accepted)) == 0:
                return point_mass(token, vocab)
            p = residual(p, q)
        return p

    for outcome, weight in runs(program):
        found += weight * outcome
    return float(np.abs(found - p2).sum() / 2)


def recovered_with_the_drafts_noise(p: Array, q: Array) -> Array:
    """Return what vLLM's model runner V2 emitted before #54282 (2026-08-28).

    The draft was argmax of log q + G, and after a refusal the token argmax of log r + G with the
    same G, where r = norm(max(p - q, 0)). In closed form: of exponential numbers E = exp(-G) the
    draft has the least E / q, say s, which tells that every other E is at least s q. So the token
    has the least E / r of numbers that start at s q / r.
    """
    r = residual(p, q)
    held = [token for token in range(len(p)) if r[token] > 0]
    start = {token: q[token] / r[token] for token in held}
    edges = [*sorted(start.values()), np.inf]
    recovered = np.zeros(len(p))
    for low, high in pairwise(edges):
        active = [token for token in held if start[token] <= low]
        rate = sum(r[token] for token in active)
        spent = [sum(r[t] * (edge - start[t]) for t in active) for edge in (low, high)]
        # the mean over s, which is exponential, of exp(-s spent)
        share = 1 / (1 + spent[0]) - (0.0 if high == np.inf else 1 / (1 + spent[1]))
        for token in active:
            recovered[token] += r[token] / rate * share
    accepted = np.minimum(p, q)
    return accepted + (1 - accepted.sum()) * recovered
