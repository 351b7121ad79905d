"""Settings that differ, one short text each."""

import re

from support.wording import differences, first_of


def test_lists_are_cut_and_counted():
    assert first_of([str(n) for n in range(12)]).endswith("8; 9; and 2 more")
    assert first_of(["a", "b"]) == "a; b"


def test_what_only_one_method_has_follows_from_it():
    there = {"--adt_beta": 0.5, "--cfg": 3.0, "--method": "adt", "--model_path": "5a", "--seed": 0}
    now = {"--cfg": 4.0, "--method": "ar", "--model_path": "6b", "--seed": 0}
    told = ["--method: adt there, ar now", "--cfg: 3.0 there, 4.0 now"]
    assert differences(there, now) == [*told, "--model_path: other files there"]
    assert differences({"--beta": 0.5}, {}) == ["--beta: 0.5 there, none now"]
    (long,) = differences({"--prompt": "a " * 99}, {"--prompt": "/home" * 20 + "/b.txt"})
    assert re.fullmatch(
        r"--prompt: '(a ){9}a\.\.\.( a){19} ' there, /home.*\.\.\..*/b.txt now", long
    )
