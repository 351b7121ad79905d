"""Parity with transformers' Chameleon, for checkpoints that either writes."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from counted import CountedCache
from damage import read_state, write_state
from small import loaded
from torch import Tensor
from transformers import ChameleonConfig, ChameleonForConditionalGeneration

from decoding.cache import CacheShape
from decoding.tree import DraftTree
from models.base import Context, TransformerSpec
from models.files.tokenizer_file import load_tokenizer
from models.target import TargetModel
from models.targets.chameleon import ChameleonVocab
from models.transformer import Transformer
from scripts.checkpoints.chameleon import Sizes, is_head_norm, write_checkpoint, write_files
from scripts.checkpoints.parts import randomised

CPU = torch.device("cpu")
LAYOUTS = ["tiny"]
VARIANTS = {
    "plain": Sizes(),
    "norm (1, head_dim)": Sizes(shared_norm=True),
    "swin norm, grouped keys": Sizes(swin_norm=True, kv_heads=1),
}


@dataclass(frozen=True)
class Pair:
    """The same weights in transformers' model and in ours."""

    theirs: ChameleonForConditionalGeneration
    ours: TargetModel

    def reference(self, ids: Tensor, **inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Features and logits by hand: their own forward hides the logits of image codes."""
        with torch.no_grad():
            features = self.theirs.model(input_ids=ids, use_cache=False, **inputs).last_hidden_state
            first, size = self.ours.vocab.first_id, self.ours.vocab.size
            return features, self.theirs.lm_head(features)[..., first : first + size]

    def compare(self, features: Tensor, expected: Sequence[Tensor]) -> None:
        torch.testing.assert_close(features, expected[0], rtol=0, atol=1e-4)
        torch.testing.assert_close(self.ours.score(features), expected[1], rtol=0, atol=1e-4)
        assert expected[1].std(-1).mean() > 0.3, "flat distributions would hide differences"


@pytest.fixture(scope="module", params=VARIANTS, ids=VARIANTS)
def pair(request, tmp_path_factory) -> Pair:
    """A checkpoint written by transformers' own save_pretrained, read by us."""
    sizes, folder = VARIANTS[request.param], tmp_path_factory.mktemp("theirs")
    config = ChameleonConfig(**write_files(folder, sizes))
    theirs = randomised(ChameleonForConditionalGeneration(config), 0, sizes.shared_norm)
    theirs.save_pretrained(folder)
    if sizes.shared_norm:  # all heads have the same norms, written once
        path = folder / "model.safetensors"
        state = {k: v[:1] if is_head_norm(k) else v for k, v in read_state(path).items()}
        write_state(path, {key: value.clone() for key, value in state.items()})
    return Pair(theirs, loaded(folder))


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_heads_share_the_rows_of_a_norm(rows, tmp_path) -> None:
    """As in Lumina-mGPT-34B, whose 64 heads of queries and 8 of keys have 4 rows."""
    path = write_checkpoint(tmp_path, Sizes(heads=8, kv_heads=4)) / "model.safetensors"
    state = {k: v[:rows].clone() if is_head_norm(k) else v for k, v in read_state(path).items()}
    write_state(path, state)
    if rows == 3:
        with pytest.raises(ValueError, match=r"q_norm.bias has shape \(3, 4\), expected \(8, 4\)"):
            loaded(tmp_path)
        return
    norms = (state[f"model.layers.1.self_attn.{name}_norm.weight"] for name in "qk")
    kept = {1: [[0] * 8, [0] * 4], 2: [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1]]}[rows]
    expected = torch.cat([norm[heads] for norm, heads in zip(norms, kept, strict=True)])
    found = loaded(tmp_path).transformer.blocks.blocks[1].attention.qk_norm.weight
    assert found.equal(expected) and len(found.unique(dim=0)) == 2 * rows


def random_ids(rows: int, n: int) -> Tensor:
    return torch.randint(4, 200, (rows, n), generator=torch.Generator().manual_seed(5))


def padding(pair: Pair, n: int) -> tuple[Tensor, Tensor, Tensor]:
    """Ids of a prompt's rows and n image tokens, with mask and positions as in transformers."""
    prompt = pair.ours.prompt("a red cat", 2)
    codes = torch.randint(pair.ours.vocab.size, (n,), generator=torch.Generator().manual_seed(6))
    ids = torch.cat([prompt.ids, (codes + pair.ours.vocab.first_id).expand(2, -1)], 1)
    mask = (torch.arange(ids.shape[1]) >= prompt.starts[:, None]).long()
    return ids, mask, (mask.cumsum(1) - 1).clamp(min=0)


def cache_of(pair: Pair) -> CountedCache:
    cache = CountedCache(pair.ours.spec, CacheShape(1, 2, 64), torch.float32, CPU)
    cache.begin(pair.ours.prompt("a red cat", 2).starts)
    return cache


def test_causal(pair) -> None:
    ids = random_ids(3, 20)
    features = pair.ours.features(ids, Context(torch.arange(20).expand(3, -1)))
    pair.compare(features, pair.reference(ids))


def test_branching_tree_after_a_padded_prompt(pair) -> None:
    """Siblings do not see each other; after the move, the accepted path is what tokens see, one
    alone and several at once.
    """
    parents = torch.tensor([[0, 0, 0, 1, 1, 2, 4]])
    depths = torch.tensor([[0, 1, 1, 2, 2, 2, 3]])
    ids, padded, positions = padding(pair, 11)
    length, real = ids.shape[1] - 11, padded.bool()
    n = length + 7
    tree = DraftTree(ids[:1, length:n], parents, depths, torch.zeros(1, 7), height=3, width=2)
    cache = cache_of(pair)
    prompt = pair.ours.features(ids[:, :length], cache.chain(length))
    cache.advance([length])
    drafted = pair.ours.features(ids[:, length:n], cache.open(tree.depths, tree.visible))

    seen = torch.ones(n, n).tril().bool()
    seen[length:, length:] = tree.visible[0]
    seen = seen & real[:, None, :n] | torch.eye(n).bool()
    below = positions[:, length : length + 1] + depths
    tree_positions = torch.cat([positions[:, :length], below], 1)
    mask = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[:, None]
    expected = pair.reference(ids[:, :n], attention_mask=mask, position_ids=tree_positions)
    real_ones = [values[real[:, :n]] for values in (torch.cat([prompt, drafted], 1), *expected)]
    pair.compare(real_ones[0], real_ones[1:])

    path, parts = [0, 1, 4, 6], []
    cache.move(torch.tensor(cache.lengths), torch.tensor([path]))
    cache.advance([4])
    for more in (ids[:, n : n + 1], ids[:, n + 1 :]):
        parts.append(pair.ours.features(more, cache.chain(more.shape[1])))
        cache.advance([more.shape[1]])
    chosen = torch.cat([ids[:, :length], ids[:, length + torch.tensor(path)], ids[:, n:]], 1)
    n = chosen.shape[1]
    expected = pair.reference(chosen, attention_mask=padded[:, :n], position_ids=positions[:, :n])
    pair.compare(torch.cat(parts, 1), [values[:, -4:] for values in expected])


def test_hidden_states_stand_behind_the_features(session) -> None:
    """After the final norm, and no score looks at them."""
    target, ids = session.target, random_ids(2, 6)
    context = Context(torch.arange(6).expand(2, -1))
    features = target.features(ids, context)
    wide = target.features(ids, context, (1,))
    network, embeddings = target.transformer, target.transformer.embedding(ids)
    rotation = network.blocks.rotary(context.positions, embeddings.dtype)
    after = network.norm(torch.add(*network.blocks.blocks[0](embeddings, None, rotation, context)))
    assert torch.equal(wide, torch.cat([features, after], 2))
    assert torch.equal(target.score(wide), target.score(features))


def test_image_ids_must_follow_their_codes(checkpoint) -> None:
    vocab = ChameleonVocab(load_tokenizer(checkpoint / "tokenizer" / "text_tokenizer.json"))
    assert (vocab.image.first_id, vocab.image.size) == (4, 24)
    vocab.ids["IMGIMGBZ"], vocab.ids["IMGIMGCZ"] = vocab.ids["IMGIMGCZ"], vocab.ids["IMGIMGBZ"]
    del vocab.image
    with pytest.raises(ValueError, match="order of their codes"):
        _ = vocab.image
    with pytest.raises(ValueError, match="<eoss2>"):
        _ = vocab["<eoss2>"]


def test_rotation_stays_in_fp32_when_the_model_is_rounded() -> None:
    """.to(bf16) on a buffer of angles would turn position 300 into 300 +- 1."""
    spec = TransformerSpec(40, 32, 48, layers=2, heads=4, kv_heads=4, max_positions=512)
    model = randomised(Transformer(spec, 10), 0).to(torch.bfloat16)
    cos, _ = model.blocks.rotary(torch.tensor([[301]]), torch.float32)
    assert cos[0, 0, 0, 0] == torch.tensor(301.0).cos()
    features = model(torch.zeros(1, 9, dtype=torch.long), Context(torch.arange(9)[None]))
    assert features.dtype == torch.bfloat16
