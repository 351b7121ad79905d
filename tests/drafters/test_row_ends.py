"""The EAGLE drafter where rows of the image end: against the head run over whole sequences."""

from __future__ import annotations

import pytest
import torch
from direct import Image
from small import open_lumina
from test_eagle import commit, drafter_of, expand, root_of

from decoding.sampling import SamplingDistribution


@pytest.mark.parametrize("counts", [[2, 2], [5, 1]], ids=["equal lengths", "ragged"])
def test_drafter_reads_row_ends(counts, lumina_folder) -> None:
    """Distributions after roots and nodes that end a row, in the images of a batch that end one and
    those that do not.
    """
    session, distribution = open_lumina(lumina_folder, "64"), SamplingDistribution()
    codes = torch.randint(
        session.target.vocab.size, (2, 14), generator=torch.Generator().manual_seed(0)
    ).tolist()
    images, done = (
        [
            Image(session, distribution, "a cat", codes[0]),
            Image(session, distribution, "three dogs", codes[1]),
        ],
        [1, 1],
    )
    drafter = drafter_of(session, distribution, images)
    for _round in range(2):
        commit(drafter, images, done, counts)
        done = [a + b for a, b in zip(done, counts, strict=True)]
        tree, chosen = root_of(images, done), torch.zeros(2, 1, dtype=torch.long)
        found, paths = expand(drafter, tree, chosen.tolist()), [[()], [()]]
        for _ in range(5):
            for i, image in enumerate(images):
                for log_q, path in zip(found[i], paths[i], strict=True):
                    torch.testing.assert_close(
                        log_q, image.distribution_after(done[i], path), rtol=0, atol=1e-6
                    )
            tokens = torch.randint(session.target.vocab.size, (2, chosen.shape[1], 2))
            paths = [
                [
                    (*path, int(token))
                    for path, row in zip(paths[i], tokens[i], strict=True)
                    for token in row
                ][1:3]
                for i in range(2)
            ]
            tree = tree.extend(chosen, tokens, -torch.ones(tokens.shape, dtype=torch.float64))
            first = tree.nodes + 2 - tree.newest
            chosen = torch.arange(first, min(first + 2, tree.nodes + 1)).expand(2, -1)
            found = expand(drafter, tree, chosen.tolist())
