"""The rows of a benchmark as a table; benchmark.json has all the rest."""

from collections.abc import Mapping, Sequence
from typing import Any

from configs.benchmark import BenchmarkSettings
from configs.fields import settings_dict
from configs.methods import MethodSettings
from configs.rules import RULES
from support.progress import plural
from support.provenance import cpu_name
from support.tables import Table, number

Row = Mapping[str, Any]
_LONG = 60  # characters of a prompt in the heading


def heading(settings: BenchmarkSettings, hardware: Mapping[str, Any], dates: Sequence[str]) -> str:
    """Return a line that says where, when and of what the figures were measured."""
    run, engine = settings.run.prompts, settings.run.engine
    sampling = engine.sampling
    machine = [hardware["gpu"]] if hardware["gpu"] else []
    machine += [cpu_name(), plural(hardware["threads"], "thread"), hardware["dtype"]]
    machine += [f"{engine.quantize} weights"] if engine.quantize else []
    machine += dates
    prompt = run.prompt if len(run.prompt) <= _LONG else run.prompt[: _LONG - 3] + "..."
    what = f"prompts: {prompt}; temperature {sampling.temperature:g}; guidance {sampling.cfg:g}"
    what += f"; top-k {sampling.top_k}" if sampling.top_k else ""
    what += f"; top-p {sampling.top_p:g}" if sampling.top_p < 1 else ""
    return f"{', '.join(map(str, machine))}; {what}\n"


def table(rows: Sequence[Row]) -> str:
    """Return the table in Markdown, and a remark for every reason to doubt one of its rows.

    A doubtful speed-up is marked with (!). The fastest lossless one that nothing speaks against is
    bold.
    """
    return table_of(rows).markdown() + remarks(rows)


def table_of(rows: Sequence[Row]) -> Table:
    """Return the table of a benchmark's rows."""
    best = best_of(rows)
    return Table.of([_cells(row, best) for row in rows])


def remarks(rows: Sequence[Row]) -> str:
    """Return a remark per reason to doubt a speed-up or equal images, which names its rows."""
    names: dict[str, list[str]] = {}  # of rows, by remark
    for row in rows:
        texts = [f"(!) {{}}: {text}" for text in row["doubts"]]
        if (why := row["inconclusive"]) is not None:
            texts.append(f"(?) {{}}: {why}, so equal images say nothing")
        for text in texts:
            names.setdefault(text, []).append(_name(row))
    return "".join(text.replace("{}", "; ".join(rows), 1) + "\n" for text, rows in names.items())


def method_words(row: Row) -> str:
    """Return a method's name and what differs from its defaults: "adt, topk drafts, nodes=9"."""
    method, proposal, verifier = (row[name] for name in ("method", "proposal", "verifier"))
    usual = MethodSettings(method)
    # the defaults of other flags depend on proposal and verifier
    defaults = settings_dict(MethodSettings(method, proposal, verifier=verifier))
    words = [f"{method} (plain decoding)" if method == "ar" else method]
    words += [f"{proposal} drafts"] if proposal != usual.proposal else []
    words += [f"{verifier} verification"] if verifier != usual.verifier else []
    differing = (name for name in defaults if row.get(name, defaults[name]) != defaults[name])
    words += [f"{name}={row[name]}" for name in differing]
    return ", ".join(words)


def words_of(method: MethodSettings) -> str:
    """Return a method's name and what differs from its defaults."""
    return method_words(settings_dict(method))


def best_of(rows: Sequence[Row]) -> Row | None:
    """Return the fastest lossless row whose speed-up is certain; None where there is none."""
    certain = [
        row
        for row in rows
        if row["lossless"] and not row["doubts"] and (row.get("speedup_low") or 0) > 1
    ]
    return max(certain, key=lambda row: row["speedup"], default=None)


def _name(row: Row) -> str:
    return row["cell"] if "cell" in row else method_words(row)


def _cells(row: Row, best: Row | None) -> dict[str, str]:
    return {
        "cell" if "cell" in row else "method": _name(row),
        "seconds per image": number(row["seconds_per_image"]),
        "tokens/s": number(row["tokens_per_second"]),
        "accepted length": f"{row['tau']:.2f}",
        # of cells, since most sweeps vary what sets it
        **({"drafted depth": f"{row['mean_drafted_depth']:.2f}"} if "cell" in row else {}),
        "speed-up (95 %)": speedup_words(row, row is best),
        "same images": same_images(row),
    }


def speedup_words(row: Row, bold: bool = False) -> str:
    """Return a speed-up and its interval, marked if something speaks against it."""
    value = f"{row['speedup']:.2f}"
    low, high = row.get("speedup_low"), row.get("speedup_high")
    interval = "" if low is None or row["method"] == "ar" else f" ({low:.2f}-{high:.2f})"
    return (f"**{value}**" if bold else value) + interval + (" (!)" if row["doubts"] else "")


def same_images(row: Row) -> str:
    """Return how many images are plain decoding's, and why others need not be or prove nothing."""
    text = f"{row['identical']}/{row['images']}"
    if not row["lossless"]:
        return f"{text}, relaxed"
    if not RULES[row["verifier"]].repeats(row["temperature"]):
        return f"{text}, same distribution"
    text += f", {row['near_ties']} by rounding" if row["near_ties"] else ""
    return text + (", inconclusive (?)" if row["inconclusive"] else "")
