"""The EAGLE drafter where rows of the image end: against the head run over whole sequences."""

from __future__ import annotations

import pytest
import torch
from direct import Image, Rounds
from small import open_lumina

from decoding.sampling import SamplingDistribution


@pytest.mark.parametrize("counts", [[2, 2], [5, 1]], ids=["equal lengths", "ragged"])
def test_drafter_reads_row_ends(counts, lumina_folder) -> None:
    """Distributions after roots and nodes that end a row, in the images of a batch that end one and
    those that do not.
    """
    session, distribution = open_lumina(lumina_folder, "64"), SamplingDistribution()
    generator, vocab = torch.Generator().manual_seed(0), session.target.vocab.size
    codes = torch.randint(vocab, (2, 14), generator=generator).tolist()
    texts = ("a cat", "three dogs")
    images = [Image(session, distribution, t, c) for t, c in zip(texts, codes, strict=True)]
    rounds = Rounds(session, distribution, images)
    for _round in range(2):
        rounds.expand(rounds.root(), [[0], [0]])
        rounds.commit(counts)
        tree, picked = rounds.root(), torch.zeros(2, 1, dtype=torch.long)
        found, paths = rounds.expand(tree, picked.tolist()), [[()], [()]]
        for _ in range(5):
            for i, image in enumerate(images):
                for log_q, path in zip(found[i], paths[i], strict=True):
                    expected = image.distribution_after(rounds.done[i], path)
                    torch.testing.assert_close(log_q, expected, rtol=0, atol=1e-6)
            tokens = torch.randint(vocab, (2, picked.shape[1], 2), generator=generator)
            for i in range(2):
                rows = zip(paths[i], tokens[i].tolist(), strict=True)
                paths[i] = [(*path, token) for path, row in rows for token in row][-2:]
            tree = tree.extend(picked, tokens, -torch.ones(tokens.shape, dtype=torch.float64))
            last = tree.newest.nodes
            picked = torch.arange(last - 2, last).expand(2, -1)
            found = rounds.expand(tree, picked.tolist())
