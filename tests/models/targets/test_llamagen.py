"""LlamaGen against plain references: prompts, rotation, features, the drafter, whole images."""

from pathlib import Path

import llamagen_reference as reference
import pytest
import torch
from counted import CountedCache
from direct import Known, Rounds
from fakes import codes as codes_of
from families import SMALL
from torch import Tensor
from transformers import AutoTokenizer, T5EncoderModel

from configs.schema import MethodSettings, SamplingSettings
from decoding.cache import CacheShape
from decoding.images import Job
from decoding.sampling import SamplingDistribution
from models.targets.captions import clean_caption
from runs.session import Session
from scripts.checkpoints.llamagen import LlamaGenSizes

CPU = torch.device("cpu")
SIZES, LAYOUTS = LlamaGenSizes(), ["llamagen"]
PLACES = SIZES.slots, SIZES.side
TEXT, CODES = "A red Cat on the mat.", [3, 20, 7, 0, 11, 23, 5]
TOLERANCE = {"rtol": 0, "atol": 1e-5}  # rotations are kept in fp32


def t5_features(original: Path, text: str, slots: int) -> tuple[Tensor, Tensor]:
    """Features (slots, width) and mask (slots,) by the recipe's own calls."""
    path = original.parent / "t5" / "flan-t5-xl"
    given = {"padding": "max_length", "truncation": True, "return_tensors": "pt"}
    tokens = AutoTokenizer.from_pretrained(path)(text, max_length=slots, **given)
    ids, mask = tokens["input_ids"], tokens["attention_mask"]
    encoder = T5EncoderModel.from_pretrained(path, dtype=torch.bfloat16)
    with torch.no_grad():
        features = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    return features[0], mask[0].bool()


LONG = "a cat on the mat and a dog and two cats on the mat"


def test_what_the_recipe_drops_of_a_prompt_is_told(session, capsys) -> None:
    """An image of nothing would say nothing of a prompt in Chinese."""
    for text in ("红色的猫", "<b></b>", "100x200"):
        with pytest.raises(ValueError, match=f"leaves nothing of the prompt {text!r}"):
            session.target.length(text)
    assert session.target.length(TEXT) == SIZES.slots and not capsys.readouterr().err
    assert session.target.length(LONG) == SIZES.slots
    assert f"prompts are cut after {SIZES.slots} tokens" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "n"), [(TEXT, 8), (LONG, SIZES.slots)], ids=["short", "cut"])
def test_caption_is_at_the_end_and_the_table_after_the_same_padding(
    text, n, original, session
) -> None:
    """As in the recipe, the tokenizer cuts a long caption and keeps the end token."""
    prompt, padding = session.target.prompt(text, 2), SIZES.slots - n
    features, mask = t5_features(original, text.lower(), SIZES.slots)
    assert int(mask.sum()) == n and prompt.origins.tolist() == [0, 0]
    assert prompt.starts.tolist() == [padding] * 2
    assert torch.equal(prompt.condition[0, padding:], features[:n].double())
    assert not prompt.condition[0, :padding].any()
    w = reference.weights(original / "model.safetensors")
    assert torch.equal(prompt.condition[1], w["model.cls_embedding.uncond_embedding"])
    assert prompt.ids.tolist() == [[0] * SIZES.slots] * 2
    alone = session.target.prompt(text, 1)
    assert torch.equal(alone.condition, prompt.condition[:1])
    assert alone.starts.tolist() == [padding]


def expected_features(original: Path, session: Session, text: str, codes: list[int]) -> Tensor:
    w, prompt = reference.weights(original / "model.safetensors"), session.target.prompt(text, 2)
    given = int(prompt.starts[0]), codes, SIZES.side
    return torch.stack([reference.target_features(w, row, *given) for row in prompt.condition])


@torch.inference_mode()
@pytest.mark.parametrize("text", [TEXT, "dog", "two red dogs and a blue cat on the mat"])
def test_prompt_and_codes_equal_the_plain_reference(text, original, session) -> None:
    target, prompt = session.target, session.target.prompt(text, 2)
    cache = CountedCache(target.spec, CacheShape(1, 2, 40), torch.float64, CPU)
    cache.begin(prompt.starts, prompt.origins)
    parts = [target.read(prompt, cache.chain(SIZES.slots))]
    cache.advance([SIZES.slots])
    for codes in (CODES[:1], CODES[1:2], CODES[2:]):
        context = cache.chain(len(codes))
        parts.append(target.features(torch.tensor([codes, codes]), context))
        cache.advance([len(codes)])
    features, expected = torch.cat(parts, 1), expected_features(original, session, text, CODES)
    torch.testing.assert_close(features, expected, **TOLERANCE)
    head = reference.weights(original / "model.safetensors")["lm_head.weight"]
    torch.testing.assert_close(target.score(features), expected @ head.T, **TOLERANCE)
    assert (expected[0] - expected[1])[SIZES.slots :].abs().max() > 0.05  # the caption matters


@torch.inference_mode()
def test_drafter_equals_the_plain_reference(original, session) -> None:
    """At the root, round after round, and at a drafted node; all padding is visible to it."""
    distribution, target = SamplingDistribution(), session.target
    w = reference.weights(original / "drafter" / "pytorch_model.bin")
    prompt = target.prompt("dog", 2)
    assert prompt.starts[0] > 3
    features = expected_features(original, session, "dog", CODES)
    image = Known(prompt, features, torch.tensor(CODES), target.grid)
    rounds = Rounds(session, distribution, [image])
    for count in (1, 3, 2):
        (done,) = rounds.done
        known = features[:, : SIZES.slots + done - 1]
        drafted = [reference.drafted_features(w, row, CODES[:done], *PLACES) for row in known]
        expected, root = distribution(target.score(torch.stack(drafted)[:, -1:])), rounds.root()
        torch.testing.assert_close(rounds.expand(root, [[0]]), expected, **TOLERANCE)
        zero = torch.zeros(1, 1, dtype=torch.long)
        tree = root.extend(zero, zero[None] + 5, -torch.ones(1, 1, 1, dtype=torch.float64))
        after = [
            reference.drafted_features(w, torch.cat([row, out[-1:]]), [*CODES[:done], 5], *PLACES)
            for row, out in zip(known, drafted, strict=True)
        ]
        expected = distribution(target.score(torch.stack(after)[:, -1:]))
        torch.testing.assert_close(rounds.expand(tree, [[0]]), expected, **TOLERANCE)
        rounds.commit([count])


JOB, GREEDY = Job("0", "a cat", 100), SamplingSettings(temperature=0.0)


@torch.inference_mode()
def test_greedy_tokens_are_those_of_the_plain_reference(original, session) -> None:
    engine = session.open_engine(MethodSettings("adt"), GREEDY)
    found = codes_of(engine, [JOB])["0"]
    head, codes = reference.weights(original / "model.safetensors")["lm_head.weight"], []
    for _ in range(SIZES.side**2):
        conditional, empty = expected_features(original, session, JOB.prompt, codes)[:, -1] @ head.T
        codes.append(int((empty + GREEDY.cfg * (conditional - empty)).argmax()))
    assert found == codes


def test_all_parts_next_to_the_transformer_are_placed(original) -> None:
    target = SMALL["llamagen"].load(original).target
    target.move(torch.device("meta"))
    parts = (target.prompts.caption, target.prompts.text.model, target.images.model)
    assert {weight.device.type for part in parts for weight in part.parameters()} == {"meta"}
    assert target.device.type == "meta" and target.transformer.head.weight.device == CPU


CLEANED = {
    "a cat,a dog/bird": "a cat, a dog bird",
    "photo by @someone at https://example.com/a?b=c, 2020": "photo by at ?b=c, 2020",
    "see www.example.com/cats now": "see now",
    "<b>Bold</b> &amp; brave <!-- no --> text": "bold brave text",
    "<script>let x</script>cat": "cat",
    "red—blue – green": "red-blue - green",
    "“Curly” and ‘single’ quotes": "\"curly\" and 'single' quotes",
    "漢字 cat 猫": "cat",
    "poster 50x70 free shipping worldwide": "poster worldwide",
    "IMG_2041.JPG of a dog": "of a dog",
    "code jc6640 and x12y": "code and",
    "this-is-my-cute-cat": "this is my cute cat",
    "well-known cat": "well-known cat",
    "#12 and 1234567 tiles": "and tiles",
    "***SALE*** [big] (red) ~ cat": "sale big red cat",
    "wait... what .. a": "wait what a",
    "'quoted text'": "quoted text",
    "cafe\u0301": "caf\u00e9",
    "a\x00 cat": "a cat",
    "the time is 12:30 ": "the time is 12:30",
    "a%20cat+and%20dog": "a cat and dog",
    "<person> on page 12": "person on",
    "click for more and download free": "and",
    "192.168.10.1 cat": "cat",
    "a : b": "a: b",
    "-edge-": "edge",
    "Tom &amp;amp; Jerry &quot;x&quot;": 'tom ; jerry "x"',
    "a sign for h&m": "a sign for hm",
    "h&m on a wall": "h m on a wall",
    "caf&eacute; &nosuch; q&a; b": "café nosuch q a b",
    "a &#39;b": "a 'b",
    "@user": "",
    "a <![c cat": "a <! c cat",  # at which the recipe's own parser fails
    "  ": "",
}


@pytest.mark.parametrize("text", CLEANED)
def test_cleaned_as_in_the_recipe(text) -> None:
    assert clean_caption(text) == CLEANED[text]
