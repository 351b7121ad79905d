"""GLM-Image's tokens against transformers: prompts, logits in both grids, whole images."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from families import PROMPTS, decoded
from small_glm_image import CODES, glm_image_settings, write_glm_image
from torch import Tensor
from transformers import GlmImageForConditionalGeneration, PreTrainedTokenizerFast
from transformers.models.glm_image.processing_glm_image import GlmImageProcessor

from configs.fields import SettingsError
from configs.schema import MethodSettings, SamplingSettings
from decoding.cache import CacheShape, KVCache
from models.base import ImageGrid, TargetModel, TargetOptions
from models.codecs.token_picture import codes_of
from models.targets.glm_image import GlmImage
from runs.session import Session, open_session

GREEDY = SamplingSettings(cfg=1.0, temperature=0.0)
TEXT = " A red <sop>cat<start>.\n"  # names of control tokens are text


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return write_glm_image(tmp_path_factory.mktemp("glm"), shard="60KB")


@pytest.fixture(scope="module")
def session(original) -> Session:
    return open_session(glm_image_settings(original))


def oracle(folder: Path) -> GlmImageForConditionalGeneration:
    model = GlmImageForConditionalGeneration
    return model.from_pretrained(folder, dtype=torch.float64).eval()


def their_grids(target: TargetModel) -> dict[str, Tensor]:
    grid = target.grid
    grids = [[1, grid.rows, grid.columns], [1, *grid.preview]]
    return {"image_grid_thw": torch.tensor(grids), "images_per_sample": torch.tensor([2])}


def test_the_prompt_is_the_processors(session, original) -> None:
    """Its tokens are those of transformers' template and layout, its grids those it gives."""
    target, home = session.target, original.parent / "processor"
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(home / "tokenizer.json"), bos_token="<start>", pad_token="<pad>"
    )
    message = {"role": "user", "content": [{"type": "text", "text": "a cat, 3 dogs"}]}
    template = (home / "chat_template.jinja").read_text()
    text = tokenizer.apply_chat_template([message], chat_template=template, tokenize=False)
    shape = GlmImageProcessor._get_target_shape(None, 64, 96)
    assert shape == (2, 3, *target.grid.preview) == (2, 3, 13, 19)
    text += "<sop>2 3<eop><sop>13 19<eop><start>"
    expected = tokenizer(text, add_special_tokens=False).input_ids
    rows = target.prompt("a cat, 3 dogs", 1)
    assert rows.ids.tolist() == [expected] and target.length("a cat, 3 dogs") == len(expected)
    ids = target.prompt(TEXT, 1).ids[0].tolist()
    words = target.prompts.words
    assert words["<start>"] == CODES and [ids.count(words[n]) for n in ("<start>", "<sop>")] == [
        1,
        2,
    ]


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize(("dtype", "bound"), [("fp64", 2e-6), ("fp32", 1e-4)])
def test_logits_in_both_grids(dtype, bound, share, tmp_path) -> None:
    """A prompt, then all tokens: rows of the small grid, its end, rows of the large one."""
    folder = write_glm_image(tmp_path / "glm", share)
    target, model = open_session(glm_image_settings(folder, dtype)).target, oracle(folder)
    rows = target.prompt(TEXT, 1)
    codes = torch.randint(
        CODES, (1, target.grid.tokens), generator=torch.Generator().manual_seed(3)
    )
    length, count = rows.ids.shape[1], target.grid.tokens
    with torch.no_grad():
        read = model(input_ids=rows.ids, **their_grids(target), use_cache=True)
        cache = read.past_key_values
        more = model(input_ids=codes, **their_grids(target), past_key_values=cache).logits
    expected = torch.cat([read.logits[:, -1:], more], 1)[..., :CODES]
    ours = KVCache(target.spec, CacheShape(1, 1, length + count), target.dtype, target.device)
    with torch.inference_mode():
        context = ours.prefill(0, length, rows.starts, rows.origins)
        features = [target.read(rows, context)[:, -1:]]
        view = ours.view(torch.tensor([length]), length, count)
        context = view.open(torch.arange(count)[None], torch.ones(1, count, count).tril().bool())
        features.append(target.features(codes, context))
        found = target.score(torch.cat(features, 1))
    assert expected.std() > 0.3
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=bound)


def test_a_greedy_image_is_that_of_transformers_generate(session, original) -> None:
    """All tokens of both grids, with every id that is no code forbidden."""
    target = session.target
    rows = target.prompt(PROMPTS[2], 1)
    forbidden = list(range(CODES, CODES + 8))
    ids = oracle(original).generate(
        rows.ids, **their_grids(target), max_new_tokens=target.grid.tokens, do_sample=False,
        suppress_tokens=forbidden,
    )  # fmt: skip
    found = decoded(session, MethodSettings("ar"), GREEDY)[2]
    assert found.tolist() == ids[0, rows.ids.shape[1] :].tolist() and len(found.unique()) > 5
    picture = target.to_image(found[None])[0]
    assert picture.shape == (2, 3, 3) and codes_of(picture).flatten().equal(found[-6:])


@pytest.mark.parametrize("method", ["adt", "jacobi", "recall"])
def test_methods_are_lossless(method, session) -> None:
    sampling = SamplingSettings(cfg=1.0, temperature=0.9, top_p=0.75)
    plain = decoded(session, MethodSettings("ar"), sampling)
    for one, other in zip(plain, decoded(session, MethodSettings(method), sampling), strict=True):
        assert one.equal(other)


def test_the_token_above_is_in_the_same_grid() -> None:
    grid = ImageGrid(2, 3, preview=(2, 2))
    above = [grid.above(position) for position in range(grid.tokens)]
    assert grid.tokens == 10 and grid.widest == 3
    assert [a if a >= 0 else None for a in above] == [None] * 2 + [0, 1] + [None] * 3 + [4, 5, 6]
    assert grid.above(torch.arange(10)).tolist() == above


def test_what_is_refused(original) -> None:
    with pytest.raises(SettingsError, match="cfg: .*1 with --model glm_image"):
        open_session(glm_image_settings(original, cfg=3.0))
    options = TargetOptions(torch.float32, torch.device("cpu"))
    with pytest.raises(ValueError, match="no image tokenizer here.*neither extract_tokens"):
        GlmImage().codec(original, options)
