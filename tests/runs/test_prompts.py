"""Prompt sources, choices among prompts, and ids that do not depend on the choice."""

import json
import time
from pathlib import Path

import pytest

from configs.fields import SettingsError
from configs.schema import PromptSettings
from runs.prompts import PromptItem, prompt_items


def items(prompt: str, **flags) -> list[PromptItem]:
    return prompt_items(PromptSettings(prompt=prompt, **flags))


def texts(prompt: str, path: Path, **flags) -> list[str]:
    found = items(prompt, prompt_file=str(path), num_images=-1, **flags)
    return [item.prompt for item in found]


def ids(prompt: str, **flags) -> list[str]:
    return [item.id for item in items(prompt, **flags)]


@pytest.fixture
def ten(tmp_path) -> str:
    path = tmp_path / "ten.txt"
    path.write_text("".join(f"prompt {n}\n" for n in range(10)))
    return str(path)


@pytest.fixture
def coco(tmp_path) -> str:
    path = tmp_path / "coco.json"
    captions = [(7, "a bus "), (5, "a cat"), (7, "a red bus"), (5, "two cats"), (9, "a bus ")]
    content = {
        "images": [{"id": 5}, {"id": 7}, {"id": 8}, {"id": 9}],
        "annotations": [{"image_id": image, "caption": text} for image, text in captions],
    }
    path.write_text(json.dumps(content))
    return str(path)


def test_lines_of_a_file(tmp_path):
    path = tmp_path / "Prompts.TXT"
    path.write_bytes("\ufeffone, 1 #\r\n\n  \t\n two \u2028 zwei\r\none, 1 #\nno end".encode())
    found = items(str(path))
    assert [item.prompt for item in found] == ["one, 1 #", " two \u2028 zwei", "one, 1 #", "no end"]
    assert [(item.number, item.occurrence) for item in found] == [(0, 0), (1, 0), (2, 1), (3, 0)]


FAULTS = {
    "x.txt": [
        (b"", "expected one prompt per line, got a file without any"),
        (b" \n\n", "expected one prompt per line, got a file without any"),
        (b"\xff\xfe", "file in UTF-8.*iconv -f UTF-16"),
        ("caf\xe9".encode("latin-1"), "iconv -f ITS_ENCODING.*not in UTF-8"),
        ("a cat\na dog\n".encode("utf-16-le"), "iconv.*NUL character in line 1, as in UTF-16"),
        (b"a cat\na \0 dog\n", "NUL character in line 2"),
        (b"\n<!DOCTYPE html>\n<title>p.txt", "a web page"),
    ],
    "p.jsonl": [
        ("a fox", "line 1 no JSON"),
        ('{"prompt": "a"}\n["b"]', "line 2 no object with `prompt` but"),
        ('{"text": "a"}', "line 1 no object with `prompt`"),
        ('{"prompt": " "}', "line 1 prompt ' '"),
        ('{"id": "../x", "prompt": "a"}', "line 1 id '../x'"),
        (
            '{"id": "a", "prompt": "a"}\n{"id": "a", "prompt": "b"}',
            "line 2 id 'a' for the second time, after line 1",
        ),
        (
            '{"id": "a", "prompt": "a"}\n{"id": "A", "prompt": "b"}',
            r"line 2 id 'A' for the second time, after line 1 \(in any case\)",
        ),
        ('{"id": "a", "prompt": "a"}\n{"prompt": "b"}', "line 2 no id, but one in line 1"),
        ('{"prompt": "a"}\n\n{"id": 1, "prompt": "b"}', "line 3 id '1', and none in line 1"),
        ('{"prompt": "a", "prompt": "b"}', "line 1 no JSON: the key 'prompt' twice"),
        ('{"prompt": "a \\u0000"}', "line 1 prompt .* a NUL character"),
        *(
            (f'{{"prompt": "a", "{key}": 7}}', f"line 1 '{key}', which counts for a whole run")
            for key in ("seed", "negative_prompt", "guidance_scale", "Top-K", "height")
        ),
        ('{"prompt": "a", "note": 7}', "line 1 the key 'note', which nothing reads"),
        ('{"prompt": "a", "promt": "b"}', "which nothing reads. Did you mean prompt?"),
        ("\n", "got a file without any"),
        ('{"prompt": "a \\ud800"}', r"line 1 prompt 'a \\ud800'"),
        ("[" * 100_000, "line 1 no JSON: brackets nested too deep"),
        ('{"prompt": null}', "line 1 prompt None"),
    ],
}


@pytest.mark.parametrize(
    ("name", "content", "message"), [(name, *case) for name in FAULTS for case in FAULTS[name]]
)
def test_prompt_files_that_cannot_be_used(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(SettingsError, match=f"--prompt .*{name}: .*{message}"):
        items(str(path))


def test_choices_keep_the_numbers(ten):
    everything = ids(ten)
    assert everything == [f"{n:05d}_0" for n in range(10)]
    assert ids(ten, num_images=3) == everything[:3]
    assert ids(ten, num_images=-1) == ids(ten, num_images=10) == everything
    assert ids(ten, slice="2-4") == everything[2:4]
    assert ids(ten, slice="8-10") == everything[8:]
    two = ["00000_0", "00000_1", "00001_0", "00001_1"]
    assert ids(ten, num_images=2, samples_per_prompt=2) == two


def test_random_subset(ten):
    chosen = ids(ten, sample=4, sample_seed=1)
    assert len(set(chosen)) == 4 and chosen == sorted(chosen)
    assert chosen == ids(ten, sample=4, sample_seed=1, seed=9, num_images=-1)
    assert set(chosen) < set(ids(ten, sample=7, sample_seed=1))
    assert len({tuple(ids(ten, sample=4, sample_seed=seed)) for seed in range(8)}) > 4
    assert ids(ten, sample=10) == ids(ten)
    on_every_machine = ["00003_0", "00004_0", "00007_0", "00009_0"]
    assert ids(ten, sample=4) == on_every_machine


@pytest.mark.parametrize(
    ("flag", "value"), [("num_images", 11), ("sample", 11), ("slice", "10-12"), ("slice", "0-11")]
)
def test_more_than_there_is_is_refused(ten, flag, value):
    with pytest.raises(SettingsError, match=f"--{flag}: expected .*10.*got .*"):
        items(ten, **{flag: value})
    with pytest.raises(SettingsError, match="--slice: expected .* stop up to 3.*got '5-6'"):
        items(ten, num_images=3, slice="5-6")
    with pytest.raises(SettingsError, match="--slice: .* parts up to 3.*got '1/4'"):
        items(ten, num_images=3, slice="1/4")


def test_the_parts_of_a_list_are_the_list(ten):
    for parts in (1, 2, 3, 7, 10):
        shares = [ids(ten, slice=f"{number}/{parts}") for number in range(1, parts + 1)]
        assert sum(shares, []) == ids(ten)
        assert {len(share) for share in shares} <= {10 // parts, 10 // parts + 1}


def test_coco_takes_the_first_caption_in_the_order_of_images(coco):
    found = items("MSCOCO2017Val", prompt_file=coco, num_images=-1)
    first = [("a cat", 0), ("a bus ", 0), ("a bus ", 1)]
    assert [(item.prompt, item.occurrence) for item in found] == first
    # A slice knows of the equal prompt before it.
    assert items("MSCOCO2017Val", prompt_file=coco, slice="2-3") == found[2:]


COCO = '{"images": [{"id": 1}], "annotations": [{"image_id": 1, "caption": %s}]}'


@pytest.mark.parametrize(
    ("dataset", "text"),
    [
        ("PartiPrompts", ""),
        ("PartiPrompts", "a\tb\nc\td\n"),
        ("MSCOCO2017Val", "{"),
        ("MSCOCO2017Val", "[]"),
        ("MSCOCO2017Val", '{"images": []}'),
        ("MSCOCO2017Val", '{"images": [], "annotations": []}'),
        ("MSCOCO2017Val", '{"images": [1], "annotations": []}'),
        ("MSCOCO2017Val", '{"images": [{"id": 1}, {"id": 1}], "annotations": []}'),
        ("PartiPrompts", "Prompt\tPrompt\na\tb\n"),
        ("MSCOCO2017Val", "[" * 100_000),
        *(
            ("MSCOCO2017Val", COCO % caption)
            for caption in ("null", '"a \\ud800"', '"  "', "[]", "1e999")
        ),
    ],
)
def test_data_set_files_that_cannot_be_used(tmp_path, dataset, text):
    path = tmp_path / "file"
    path.write_text(text)
    with pytest.raises(SettingsError, match="--prompt_file .*file: expected .*, got "):
        items(dataset, prompt_file=str(path))


@pytest.mark.parametrize(
    ("dataset", "source"),
    [("PartiPrompts", "google-research/parti"), ("MSCOCO2017Val", "cocodataset")],
)
def test_a_missing_data_set_says_where_to_get_it(tmp_path, dataset, source):
    message = f"expected .*configs/prompts.*got no file .*nowhere. Get it from .*{source}"
    with pytest.raises(SettingsError, match=message):
        items(dataset, prompt_file=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("caption", "captions"),
    [
        ("longest", ["two cats", "a red bus", "a bus "]),
        ("all", ["a cat", "two cats", "a bus ", "a red bus", "a bus "]),
    ],
)
def test_captions_of_an_image(coco, caption, captions):
    assert texts("MSCOCO2017Val", coco, caption=caption) == captions


@pytest.mark.parametrize(
    ("dataset", "text", "found", "said"),
    [
        ("PartiPrompts", 'Prompt\tC\na "b\tX\nc\tX\nd\tX\n', ['a "b', "c", "d"], None),
        ("PartiPrompts", 'Prompt\tC\n"quoted ""d"""\tY\n', ['quoted "d"'], None),
        ("PartiPrompts", 'Prompt\tC\n"a" b\tX\n"c\tX\n', ['"a" b', '"c'], None),
        ("PartiPrompts", "C\tPrompt\nX\ta\nX\nX\t \n", ["a"], "2 of 3 rows have no prompt"),
        (
            "MSCOCO2017Val",
            '{"images": [{"id": 1}, {"id": 2}], "annotations": [{"image_id": 1, "caption": "  "}, '
            '{"image_id": 2, "caption": ""}, {"image_id": 1, "caption": "a cat"}]}',
            ["a cat"],
            "2 captions are blank",
        ),
    ],
)
def test_entries_without_a_prompt_are_counted(tmp_path, capsys, dataset, text, found, said):
    path = tmp_path / "file"
    path.write_text(text)
    assert texts(dataset, path) == found
    error = capsys.readouterr().err
    assert (said in error and str(path) in error) if said else not error


def test_lines_with_ids(tmp_path, capsys):
    path = tmp_path / "p.jsonl"
    path.write_text(
        '{"id": "fox-1", "prompt": "a fox", "_note": 1}\n\n{"id": 7, "prompt": "a fox"}\n'
    )
    assert items(str(path), samples_per_prompt=2)[1:3] == [
        PromptItem("a fox", 0, 1, 0, "fox-1"),
        PromptItem("a fox", 1, 0, 1, "7"),
    ]
    assert ids(str(path)) == ["fox-1_0", "7_0"]
    assert capsys.readouterr().err == ""
    path.write_text('{"prompt": "a fox"}\n{"prompt": "a cat"}')
    assert ids(str(path)) == ["00000_0", "00001_0"]


def test_20000_lines_with_ids_are_read_in_linear_time(tmp_path):
    path = tmp_path / "p.jsonl"
    path.write_text("".join(f'{{"id": "i{n}", "prompt": "a fox"}}\n' for n in range(20_000)))
    started = time.process_time()
    assert len(items(str(path), num_images=-1)) == 20_000
    # 0.4 s, and 1.2 on a busy machine; a search through a list of ids would add 3.4
    assert time.process_time() - started < 3


@pytest.mark.parametrize(
    "text", ["a sign that says and/or", "und/oder ja", "狐狸/猫", "a.b", "no/ .csv"]
)
def test_texts_with_a_space_or_in_other_scripts_are_no_paths(text):
    assert [item.prompt for item in items(text)] == [text]
