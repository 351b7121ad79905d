"""Tables of texts in every format."""

import csv
import io
import re

from support.tables import Table


def test_tables_in_every_format():
    table = Table(("a_b", "50 %"), (("x|y", "1, 2"), ("~", "&")))
    assert table.markdown().splitlines() == [
        "| a_b | 50 % |",
        "| --- | --- |",
        "| x\\|y | 1, 2 |",
        "| ~ | & |",
    ]
    assert list(csv.reader(io.StringIO(table.csv()))) == [
        ["a_b", "50 %"],
        ["x|y", "1, 2"],
        ["~", "&"],
    ]
    assert r"a\_b & 50 \% \\" in table.latex() and r"\textasciitilde{} & \& \\" in table.latex()


def test_latex_has_a_cell_per_column_and_no_letter_that_it_would_take_as_its_own():
    nasty = (r"a_b & 50 % \ {x} ~ ^ # $", "[1]", "*", "<|> ↑ ↓", "--fid", "x" * 50)
    table = Table(nasty, (nasty, nasty[::-1]))
    begin, *lines = table.latex().split("\n")
    layout = begin.removeprefix(r"\begin{tabular}{").removesuffix("}")
    assert lines[-2:] == [r"\end{tabular}", ""] and len(re.findall(r"l|r|p\{4cm\}", layout)) == len(
        nasty
    )
    rows = [line for line in lines if line.endswith(r" \\")]
    assert [line for line in lines[:-2] if line not in rows] == [
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
    ]
    known = re.compile(
        r"\\(textbackslash|textasciitilde|textless|textgreater|textbar|\^)\{\}|\\[&%$#_{}]"
    )
    for row in rows:
        text = known.sub("", row.removesuffix(r" \\").removeprefix("{}"))
        text = re.sub(r"\$\\(up|down)arrow\$", "", text)
        assert (
            text.count("&") == len(nasty) - 1
            and text.isascii()
            and not set(text) & set("\\%$#_{}~^<>|")
        )
        assert not row.startswith(("[", "*"))


def test_latex_breaks_long_texts_and_keeps_brackets_out_of_line_breaks():
    text = Table(("a", "b"), (("[1]", "x" * 50),)).latex()
    assert r"\begin{tabular}{lp{4cm}}" in text and "\n{}[1] & x" in text


def test_columns_of_figures_are_told_from_words() -> None:
    rows = (("ar", "1.00", "-", "12/12", "-"), ("adt", "+0.5 (!)", "3", "-", "95 %, over images"))
    assert Table(("run", "speed-up", "tau", "same", "interval"), rows).figure_columns == (
        False, True, True, True, False
    )  # fmt: skip
