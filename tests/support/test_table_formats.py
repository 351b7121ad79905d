"""Words of messages, and tables of texts in every format."""

import csv
import io
import re

from support.tables import Table
from support.wording import differences, first_of


def test_tables_in_every_format():
    table = Table(("a_b", "50 %"), (("x|y", "1, 2"), ("~", "&")))
    assert table.markdown().splitlines() == [
        "| a_b | 50 % |",
        "| --- | --- |",
        "| x\\|y | 1, 2 |",
        "| ~ | & |",
    ]
    rows = [["a_b", "50 %"], ["x|y", "1, 2"], ["~", "&"]]
    assert list(csv.reader(io.StringIO(table.csv()))) == rows
    assert r"a\_b & 50 \% \\" in table.latex() and r"\textasciitilde{} & \& \\" in table.latex()


def test_figures_are_alone_in_csv_and_bold_in_latex() -> None:
    table = Table(
        ("run", "speed-up", "clip", "same"),
        (
            ("ar", "1.00 (!)", "-0.1 [-0.2, +0.3]", "-"),
            ("an adt", "**1.50** (1.40-1.60)", "-", "2/2, relaxed"),
        ),
    )
    ends = "speed-up low,speed-up high,speed-up doubtful,clip low,clip high"
    assert table.csv().splitlines() == [
        f"run,speed-up,clip,same,{ends}",
        "ar,1.00,-0.1,,,,yes,-0.2,+0.3",
        'an adt,1.50,,"2/2, relaxed",1.40,1.60,,,',
    ]
    assert r"an adt & \textbf{1.50} (1.40-1.60)" in table.latex()


def test_latex_has_a_cell_per_column_and_no_letter_that_it_would_take_as_its_own():
    nasty = (r"a_b & 50 % \ {x} ~ ^ # $", "[1]", "*", "<|> ↑ ↓", "--fid", "x" * 50)
    table = Table(nasty, (nasty, nasty[::-1]))
    begin, *lines = table.latex().split("\n")
    layout = begin.removeprefix(r"\begin{tabular}{").removesuffix("}")
    assert lines[-2:] == [r"\end{tabular}", ""]
    assert len(re.findall(r"l|r|p\{4cm\}", layout)) == len(nasty)
    rows = [line for line in lines if line.endswith(r" \\")]
    rules = [line for line in lines[:-2] if line not in rows]
    assert rules == [r"\toprule", r"\midrule", r"\bottomrule"]
    words = "textbackslash|textasciitilde|textless|textgreater|textbar"
    known = re.compile(rf"\\({words}|\^)\{{\}}|\\[&%$#_{{}}]")
    for row in rows:
        text = known.sub("", row.removesuffix(r" \\").removeprefix("{}"))
        text = re.sub(r"\$\\(up|down)arrow\$", "", text)
        assert text.count("&") == len(nasty) - 1 and text.isascii()
        assert not set(text) & set("\\%$#_{}~^<>|")
        assert not row.startswith(("[", "*"))


def test_columns_of_figures_are_told_from_words() -> None:
    rows = (("ar", "1.00", "-", "12/12", "-"), ("adt", "+0.5 (!)", "3", "-", "95 %, over images"))
    table = Table(("run", "speed-up", "tau", "same", "interval"), rows)
    assert table.figure_columns == (False, True, True, True, False)


def test_lists_are_cut_and_counted():
    assert first_of([str(n) for n in range(12)]).endswith("8; 9; and 2 more")
    assert first_of(["a", "b"]) == "a; b"


def test_what_only_one_method_has_follows_from_it():
    there = {"adt_beta": 0.5, "cfg": 3.0, "method": "adt", "model_path": "sha256:5a", "seed": 0}
    now = {"cfg": 4.0, "method": "ar", "model_path": "sha256:6b", "plugin mine": "sha256:1"}
    told = ["--method: adt there, ar now", "--cfg: 3.0 there, 4.0 now"]
    assert differences(there, now) == [*told, "--model_path: other files there"]
    assert differences({"beta": 0.5}, {}) == ["--beta: 0.5 there, none now"]
    assert differences({"a b": "sha256:1"}, {"a b": "sha256:2"}) == ["a b: other files there"]
    (long,) = differences({"prompt": "a " * 99}, {"prompt": "/home" * 20 + "/b.txt"})
    assert re.fullmatch(r"--prompt: '(a ){9}a\.{3}( a){19} ' there, /home.*\.{3}.*/b.txt now", long)


def test_a_name_of_two_lines_stays_in_one_row():
    table = Table(("run",), (("a\nb|c",),))
    assert table.markdown().splitlines()[-1] == "| a\\nb\\|c |"
