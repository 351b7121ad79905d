"""The file of a sweep: its cells, and errors that name file and key."""

import pytest
from program import benchmark_settings, read_words
from stand_ins import empty_checkpoint

from configs.fields import SettingsError
from configs.schema import ROOT

GOOD = (
    "base: adt\naxes:\n  adt_beta: [0.1, 0.9]\n  nodes: [4, 8]\nmethods: eagle2, eagle2:nodes=8\n"
)
FILES = sorted((ROOT / "configs" / "sweeps").glob("*.yaml"))


@pytest.fixture
def bench(tmp_path):
    empty_checkpoint(tmp_path / "model")

    def build(text: str, *words: str):
        (tmp_path / "mine.yaml").write_text(text)
        paths = {"model_path": str(tmp_path / "model"), "sweep": str(tmp_path / "mine.yaml")}
        return benchmark_settings({"prompt": "a cat"} | paths | read_words("benchmark", words))

    return build


def test_cells_are_all_combinations_and_the_further_methods(bench) -> None:
    settings = bench(GOOD)
    varied = [f"adt:adt_beta={beta}:nodes={nodes}" for beta in ("0.1", "0.9") for nodes in (4, 8)]
    assert settings.sweep.varied == tuple(varied)
    assert settings.sweep.others == ("eagle2", "eagle2:nodes=8")
    assert settings.sweep.axes == ("adt_beta", "nodes")
    assert [method.nodes for method in settings.methods] == [4, 8, 4, 8, 58, 8]
    assert [method.own.beta for method in settings.methods[:4]] == [0.1, 0.1, 0.9, 0.9]
    assert settings.output == "outputs/sweeps/mine"


def test_several_bases_share_the_axes(bench) -> None:
    entries = bench("base: static,eagle2\naxes:\n  proposal: [topk, coupled]\n").sweep.entries
    assert entries == tuple(
        f"{name}:proposal={p}" for name in ("static", "eagle2") for p in ("topk", "coupled")
    )


@pytest.mark.parametrize(
    ("cells", "varied", "others"),
    [("0-2", 2, 0), ("2-5", 2, 1), ("5-6", 0, 1), ("0-6", 4, 2), ("4-6", 0, 2)],
)
def test_a_part_of_the_cells(bench, cells, varied, others) -> None:
    first, end = map(int, cells.split("-"))
    sweep, whole = bench(GOOD, "--cells", cells).sweep, bench(GOOD).sweep
    assert (len(sweep.varied), len(sweep.others)) == (varied, others)
    assert sweep.entries == whole.entries[first:end]


def test_method_flags_go_to_all_cells_that_do_not_vary_them(bench) -> None:
    settings = bench(GOOD, "--proposal", "topk", "--adt_d_max", "2", "--output_dir", "here")
    assert {method.proposal for method in settings.methods} == {"topk"}
    assert settings.output == "here"
    assert [method.own.d_max for method in settings.methods[:4]] == [2] * 4


def axes(text: str, base: str = "adt") -> str:
    return f"base: {base}\naxes:\n  {text}\n"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("axes:\n  nodes: [4]\n", "base: expected name.*got nothing"),
        ("base: adt\n", "axes: expected flag.*got nothing"),
        ("base: adt\naxes: [nodes]\n", r"axes: expected flag.*got \['nodes'\]"),
        (axes("nodes: 4"), "axes: nodes: expected a list of values.*got '4'"),
        (axes("nodes: []"), r"axes: nodes: expected a list of values.*got \[\]"),
        (axes("nodes: [[4], 5]"), "axes: nodes: expected a list of values.*got .*"),
        (axes("nodes: [4, many]"), "in 'adt:nodes=many': --nodes: expected a whole.*got 'many'"),
        (axes("depth: [4]"), "in 'adt:depth=4': --depth: .*only with --method eagle2"),
        (axes("adt_k_min: [2, 9]"), "in 'adt:adt_k_min=9': --adt_k_min: expected at most.*got 9"),
        (axes("nodes: [4]", "atd"), "with the name ar, .*got 'atd:nodes=4'. Did you mean adt"),
        (axes("nodes: [4, 6]\nmethods: adt"), "different methods, got adt:nodes=6 and adt"),
        (axes("nodes: [4]\nmethods: ar"), "expected methods other than ar, .*got ar"),
        (axes("nodes: [4]\nmethods: [ar]"), "methods: expected name.*got .*"),
        (axes("nodes: [4]\nquality: true"), "expected axes, base or methods, got quality"),
        (axes("nodes: [4]\nmethod: ar"), "keys: expected axes, base or methods, got method"),
    ],
)
def test_bad_files_are_refused_by_file_and_key(bench, text, error) -> None:
    with pytest.raises(SettingsError, match=f"--sweep .*mine.yaml[:,] .*{error}"):
        bench(text)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_the_projects_own_sweeps(path, bench) -> None:
    settings = bench(path.read_text())
    assert len(settings.methods) == len(settings.sweep.entries) > 3
