"""The documentation names what exists, in few and plain words; its links and figures are right."""

import ast
import re
import shlex
import tokenize
from collections.abc import Iterator
from functools import cache
from itertools import takewhile
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markdown_pages import PAGES, anchors, blocks, links, prose, read
from program import FOLDERS, read_words

import main
from commands import NAMES
from commands import command as of_name
from configs.targets import ROOT, TARGETS
from eval.report.speed import PUBLISHED
from scenes.attribute_classifier import Attributes
from scenes.training.train_attributes import LABELS
from scripts.tools.command_reference import GUIDES, page

# users put public weights there
ABSENT = tuple(f"ckpts/{name}" for name in ("metrics", *TARGETS) if name != "tiny")
PLACES = ("configs", "scripts", "eval", "docs", "ckpts", "tests")
# of scripts, of torchrun and the hub's client, of fire
OTHERS = {"nproc_per_node", "local", "help", "small", "thin", "output", "images", "tau"}
OTHERS |= {"measured", "size", "version", "typical_share", "certain_entropy"}


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_are_run_exist(page: str) -> None:
    for module in re.findall(r"python -m ((?:scripts|scenes|eval)[\w.]*\w)", read(page)):
        source = ROOT / Path(*module.split(".")).with_suffix(".py")
        text = source.read_text(encoding="utf-8")
        assert "run_script" in text or "__main__" in text, f"{page}: {module}"


@pytest.mark.parametrize("page", PAGES)
def test_files_of_the_checkout_exist(page: str) -> None:
    found = re.findall(rf"(?:^|[\s`(=,])((?:{'|'.join(PLACES)})/[\w./-]*\w)", read(page))
    made = {block.mark("file") for block in blocks(page)}
    wanted = {name for name in found if not name.startswith(ABSENT)} - made
    missing = {name for name in wanted if not (ROOT / name).exists()}
    assert not missing, f"{page} names {', '.join(missing)}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_can_be_typed(page: str) -> None:
    """Their flags exist and have values, once each; what the values mean is not looked at."""
    for command, *rest in commands(page):
        if not {"--help", "-h", "--version"} & {command, *rest}:
            read_words(command, rest)


def test_every_command_is_shown() -> None:
    assert {words[0] for page in PAGES for words in commands(page)} >= set(NAMES)


def commands(page: str) -> list[list[str]]:
    text = "".join(block.text for block in blocks(page) if block.language == "bash")
    text = re.sub(r"\$\([^)]*\)", "1", text)  # what the shell puts in place
    lines = text.replace("\\\n", " ").splitlines()
    starts = ("python main.py", "adt-tree", ".venv/bin/adt-tree")
    found = []
    for line in map(str.strip, lines):
        if start := next((s for s in starts if line.startswith(f"{s} ")), None):
            words = shlex.split(line, comments=True)[len(start.split()) :]  # up to a pipe or file
            found.append([*takewhile(lambda word: word[0] not in "|>&;", words)])
    return found


@pytest.mark.parametrize("page", PAGES)
def test_prompts_of_the_included_model_are_like_its_captions(page: str) -> None:
    for prompt in re.findall(r'"([^"\n]* on a [^"\n]*background)"', read(page)):
        assert Attributes.from_prompt(prompt, LABELS) is not None


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/commands.md"])
def test_flags_in_the_text_exist(page: str) -> None:
    known = {name for command in NAMES for name in of_name(command).known.flags} | OTHERS
    for name in re.findall(r"--([a-z]\w*)(?!\*)\b", prose(page)):
        assert {name, name.removeprefix("no")} & known, f"{page}: --{name}"


# words that a reader stumbles over -> the usual one
PLAIN = {
    r"\banew\b": "again",
    r"\bbesides\b": "as well",
    r", too\b": "as well",
    r"\bin place of\b": "instead of",
    r"\b(lies?|lie) in\b": "is in",
    r"\bcomes? to\b": "is",
    r"\bpays\b": "is faster",
    r"\bSR\b": "speed-up",
    r"\bwhat nobody\b": "what the noun is",
    r"\bdraws? (an )?images?\b": "generates",
}
GUIDES_AND_CODE = [page for page in PAGES if page.startswith(("docs/", "README"))]
GUIDES_AND_CODE += ["main.py", *FOLDERS]
SOURCES = ("*.py", "*.sh", "*.yaml")
HERE = ("tests", ".venv", ".git", "work", "outputs")


def written(place: str) -> Iterator[tuple[str, str]]:
    """What people read in a guide or in the code of a folder: comments, docstrings, messages."""
    if place.endswith(".md"):
        yield place, prose(place)
        return
    root = ROOT / place
    for path in [root] if root.is_file() else root.rglob("*.py"):
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if tokenize.tok_name[token.type] in ("COMMENT", "STRING", "FSTRING_MIDDLE"):
                    yield f"{path.relative_to(ROOT)}:{token.start[0]}", token.string


@pytest.mark.parametrize("place", GUIDES_AND_CODE)
def test_words_are_plain(place: str) -> None:
    for where, text in written(place):
        for word, better in PLAIN.items():
            found = re.search(word, re.sub(r"\s+", " ", text))
            assert not found, f"{where}: {found[0]!r}; say {better!r}"


def test_the_readme_is_short() -> None:
    assert len(read("README.md").split()) <= 900


def test_code_names_pages_that_exist() -> None:
    paths = [path for kind in SOURCES for path in ROOT.rglob(kind)]
    for path in paths:
        if path.relative_to(ROOT).parts[0] not in HERE:
            for name in re.findall(r"docs/[\w/]+\.(?:md|json)", path.read_text(encoding="utf-8")):
                assert (ROOT / name).exists(), f"{path.relative_to(ROOT)} names {name}"


def target(page: str, link: str) -> tuple[Path, str]:
    """The file and the anchor that a link on a page leads to."""
    name, _, anchor = link.partition("#")
    return ((ROOT / page).parent / name if name else ROOT / page).resolve(), anchor


@pytest.mark.parametrize("page", (*PAGES, "CONTRIBUTING.md", "CHANGELOG.md"))
def test_links_lead_somewhere(page: str) -> None:
    for link in links(page):
        path, anchor = target(page, link)
        assert path.exists(), f"{page}: {link}"
        assert not anchor or anchor in anchors(path), f"{page}: {link} has no such heading"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, rest = set(), ["README.md"]
    while rest:
        page = rest.pop()
        if page in seen:
            continue
        seen.add(page)
        paths = [target(page, link)[0] for link in links(page)]
        rest += [str(p.relative_to(ROOT)) for p in paths if p.suffix == ".md" and ROOT in p.parents]
    assert not set(PAGES) - seen


@pytest.mark.parametrize("drawing", sorted((ROOT / "docs").rglob("*.svg")), ids=lambda p: p.name)
def test_drawings_have_a_title_and_a_dark_variant(drawing: Path) -> None:
    root = ElementTree.parse(drawing).getroot()
    names = {child.tag.rpartition("}")[2] for child in root}
    assert {"title", "desc", "style"} <= names
    assert "prefers-color-scheme: dark" in drawing.read_text(encoding="utf-8")


def test_the_command_reference_is_up_to_date() -> None:
    stored = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert stored == page(), "run `python -m scripts.tools.command_reference`"


def test_it_has_every_flag_and_examples_that_can_be_typed() -> None:
    text = page()
    for command, (example, _) in GUIDES.items():
        read_words(command, shlex.split(example))
        for flag in of_name(command).known.flags:
            assert f"`--{flag}" in text, flag
    assert GUIDES.keys() == set(NAMES)


ROWS = {("ar", "exact"): "ar", ("eagle2", "exact"): "eagle2", ("eagle2", "lantern"): "lantern"}
ROWS |= {("adt", "exact"): "adt", ("adt", "lantern"): "adt_lantern"}
PROMPTS = {"MSCOCO2017Val": "coco", "PartiPrompts": "parti"}


def test_the_page_has_every_published_figure() -> None:
    lines = read("docs/paper.md").splitlines()
    for (_, prompts, _, method, rule), cell in PUBLISHED.items():
        figures = (cell.speedup, cell.tau, cell.drafted_depth)
        shown = ["-" if figure is None else f"{figure:.2f}" for figure in figures]
        shown.append("-" if cell.clip is None else f"{cell.clip:.4f}")
        names = f"`{PROMPTS[prompts]}` | `{ROWS[method, rule]}`"
        assert f"| {names} | {' | '.join(shown)} |" in lines


PAGE = "docs/troubleshooting.md"
LEAST = 6  # letters of a piece that say anything


@cache
def strings() -> str:
    """The text of all string constants of the program; what is put in later is a gap."""
    found = []
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] in (*FOLDERS, "main.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


@pytest.mark.parametrize("text", [b.text for b in blocks(PAGE) if b.language == "text"])
def test_a_text_occurs_in_the_code(text: str) -> None:
    pieces = (piece.strip() for piece in re.split("…|\n", text))
    told = [piece for piece in pieces if len(piece) >= LEAST]
    assert told
    for piece in told:
        assert piece in strings(), piece


@pytest.mark.parametrize("text", [b.text for b in blocks(PAGE) if b.language == "console"])
def test_a_command_says_so(text, capsys, tmp_path, monkeypatch) -> None:
    """Commands that end before anything is loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    typed, said = text.strip().split("\n")
    words = shlex.split(typed.removeprefix("$ python main.py"))
    assert words[0] in NAMES
    assert main.main(words) == 2
    wanted = ".*".join(re.escape(piece) for piece in said.split("…"))
    *_, told = capsys.readouterr().err.strip().split("\n")  # libraries warn on lines before it
    assert re.fullmatch(wanted, told)
