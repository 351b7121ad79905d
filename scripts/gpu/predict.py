"""Predict what a round costs on a GPU, without a GPU and without weights.

`python -m scripts.gpu.predict --model anole --gpu h100 --tau outputs/benchmark.json`

It counts what rounds launch, read and compute (scripts.gpu.count) and prices that. The prices are
fitted to an H200's rounds of 2026-11-27 (docs/gpu.md); other cards' follow their data sheets.
`--measured` shows what scripts.gpu.rounds measured next to a prediction. `--trace RUN,RUN2` prices
every round of finished runs by its own trees.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from configs.fields import SettingsError, refuse
from configs.methods import MethodSettings
from configs.model import EngineSettings, SamplingSettings
from configs.recipes import listed_method
from configs.rules import RULES
from eval.bench.table import method_words, words_of
from eval.report.run import read_run
from runs.records import tau as tau_of
from runs.session import Session, open_session
from scripts.checkpoints.chameleon import IDS, anole_config, write_parts
from scripts.checkpoints.published import Published
from scripts.gpu.count import (
    BEST_CODES,
    CHILD_KERNELS,
    CUT_KERNELS,
    KINDS,
    ROW_KERNELS,
    WIDE_KERNELS,
    Work,
    count_rounds,
    total_bytes,
)
from scripts.gpu.rounds import METHODS, held
from scripts.gpu.tokens import short
from scripts.gpu.traces import Replayed, TracedRun, read_trace
from support.json_files import read_object
from support.json_lines import read_lines
from support.script import run_script
from support.tables import NONE, Table

# Shares that were reached: of the bandwidth, the products of a 7B's rounds and their attention
# (which scatters over short rows); of the bf16 rate, products of some hundred rows.
REACHED, CACHE_REACHED, COMPUTED = 0.78, 0.4, 0.6
# Between two rounds: Python, two copies, a wait and the launch of a graph; and between two kernels
# of a graph.
HOST_MS, GAP_US = 0.15, 0.5
# The share of the host's time that a GPU does not wait for where a round begins before the outcome
# of the last one is read: the rest is four small kernels and two copies (estimated).
HIDDEN = 0.85
RULE_MS = 0.6  # a rule that walks on the host: a copy of the distributions there, and the walk
# Levels of the two rounds that are counted of each kind of trace: the others are on their line.
SHALLOW, DEEP = 2, 8
PLAIN = Replayed(MethodSettings("ar"), masked=False, depth=0)
ERROR = 0.3  # of every price, in either direction


@dataclass(frozen=True)
class Prices:
    """What a GPU charges, by its data sheet and by estimates of a kernel's least time."""

    name: str
    gb_per_s: float
    tflops: float  # dense, bf16 with fp32 sums
    launched_us: float  # of the host, per operation of PyTorch
    replayed_us: float  # least time of a kernel in a CUDA graph
    fp8: bool = True  # whether it multiplies fp8, at twice the rate
    gap_us: float = GAP_US  # until the graph's next kernel begins
    host_ms: float = HOST_MS

    def scaled(self, memory: float, kernels: float, host: float) -> "Prices":
        """Return other prices: times and not rates are multiplied."""
        return replace(
            self, gb_per_s=self.gb_per_s / memory, tflops=self.tflops / memory,
            launched_us=self.launched_us * kernels, replayed_us=self.replayed_us * kernels,
            gap_us=self.gap_us * kernels, host_ms=self.host_ms * host,
        )  # fmt: skip

    def kernel_ms(self, work: Work) -> float:
        """Return how long a replayed kernel takes, which is at least that of an empty one."""
        reached = CACHE_REACHED if work.kind == "cache" else REACHED
        reading = work.bytes / (reached * self.gb_per_s * 1e6)
        computing = work.operations / (COMPUTED * self.tflops * 1e9)
        return max(reading, computing, self.replayed_us / 1000)

    def device(self, work: Sequence[Work]) -> dict[str, float]:
        """Return the milliseconds of a round's kernels by kind of work."""
        times = dict.fromkeys(KINDS, 0.0)
        for kernels in work:
            times[kernels.kind] += kernels.kernels * self.kernel_ms(kernels)
        return times

    def replayed(self, work: Sequence[Work]) -> dict[str, float]:
        """Return the milliseconds of a replayed round by kind of work."""
        return self.device(work) | {"gaps": self._gaps(work), "host": self.host_ms}

    def launched(self, work: Sequence[Work]) -> float:
        """Return the milliseconds of a launched round: the slower of the host and the device."""
        queued = _count(work) * self.launched_us / 1000
        return self.host_ms + max(queued, sum(self.device(work).values()) + self._gaps(work))

    def _gaps(self, work: Sequence[Work]) -> float:
        return _count(work) * self.gap_us / 1000


def _count(work: Sequence[Work]) -> float:
    return sum(kernels.kernels for kernels in work)


# Bandwidth and rate are those of NVIDIA's data sheets. A launched operation of PyTorch takes 6 to 8
# us of the host (estimated). 3.0 us for the kernels of a graph are fitted: some are not counted.
GPUS = {
    "h100": Prices("H100 SXM", 3350, 989, 7, 3.0),
    "h200": Prices("H200 SXM", 4800, 989, 7, 3.0),
    "a100": Prices("A100 80GB SXM", 2039, 312, 7, 3.4, fp8=False),
    "4090": Prices("RTX 4090", 1008, 165, 6, 3.0),
    "a10": Prices("A10", 600, 125, 7, 3.4, fp8=False),
    "l4": Prices("L4", 300, 121, 6, 3.0),
}


@dataclass(frozen=True)
class Row:
    """A method, the accepted length that is assumed of it, and the work of a round."""

    name: str
    method: MethodSettings
    tau: float | None
    work: list[Work]
    compiled: list[Work]  # with --compile inductor

    def replayed(self, gpu: Prices, compiled: bool = False) -> dict[str, float]:
        """Return the milliseconds of a replayed round by kind of work, the rule's with the host."""
        times = gpu.replayed(self.compiled if compiled else self.work)
        rule = self.rule_ms(gpu)
        waits = rule or self.method.proposal == "sampled" or self.method.method == "adt"
        return times | {"host": times["host"] * (1 if waits else 1 - HIDDEN) + rule}

    def round_ms(self, gpu: Prices, compiled: bool = False) -> float:
        return sum(self.replayed(gpu, compiled).values())

    def rule_ms(self, gpu: Prices) -> float:
        """Return the milliseconds of a rule that walks on the host."""
        rule = RULES[self.method.verifier or "exact"]
        return 0 if rule.same_tokens or rule.nodewise else RULE_MS * gpu.host_ms / HOST_MS

    def speedup(self, plain: "Row", gpu: Prices, compiled: bool = False) -> float:
        """Return how many times as fast as `ar` it is with its tau, both compiled or neither."""
        assert self.tau is not None
        rounds = plain.round_ms(gpu, compiled) / self.round_ms(gpu, compiled)
        return self.tau * rounds


def predict(  # noqa: PLR0913 (flags)
    *,
    model: str = "anole",
    model_path: str | None = None,
    gpu: str | None = None,
    methods: str = ",".join(METHODS),
    tau: str | None = None,
    images: int = 1,
    quantize: str | None = None,
    measured: str | None = None,
    trace: str | None = None,
) -> None:
    """Print predicted milliseconds per round, where they go, and speed-ups.

    Args:
        model: anole (7B), or tiny.
        model_path: a folder whose config.json has other sizes than Anole's.
        gpu: h100, h200, a100, 4090, a10, l4, by commas, or all; by default this one, or h100.
        methods: as in `benchmark --methods`.
        tau: a benchmark.json or a folder of generate_images: its methods are predicted, with their
            accepted lengths and mean depths, although those are of another model.
        images: decoded at once.
        quantize: fp8, or nothing.
        measured: measurements.jsonl of scripts.gpu.rounds, whose figures are shown as well.
        trace: folders of `generate_images --trace` with adt or eagle2, by commas.
    """
    gpus = _gpus(gpu)
    if quantize not in (None, "fp8") or (quantize and not all(card.fp8 for card in gpus)):
        cards = ", ".join(name for name, card in GPUS.items() if card.fp8)
        refuse("quantize", quantize, f"fp8, with the cards {cards}")
    runs = [] if trace is None else [read_trace(run) for run in trace.split(",")]
    table = _listed(methods) if tau is None else _tabled(Path(tau))
    given = f"{model_path or model} in {quantize or 'bf16'}, {images} at once, guidance"
    with TemporaryDirectory() as folder:
        session, scale = open_narrow(model, model_path, Path(folder))
        print(f"Predicted, not measured: {given}.")
        counted = partial(count_rounds, session, scale, images=images)
        count = in_fp8(counted) if quantize else counted
        if runs:
            price = round_prices(count)
            traced = Table.of([_traced_cells(run, gpus, price, images) for run in runs])
            print(f"\n{traced.markdown()}\n{_assumptions(gpus, trace)}")
            return
        rows = [Row(*entry, count(entry[1]), count(entry[1], compiles=True)) for entry in table]
    gigabytes = total_bytes(session, scale) / 1e9
    for prices in gpus:
        print(f"\n{prices.name}:\n")
        times = _measured(measured, images)
        print(Table.of([_cells(row, rows[0], prices, times) for row in rows]).markdown())
    print(f"Peak memory: about {gigabytes:.0f} GB of weights and caches.\n")
    print(_assumptions(gpus, tau))


def in_fp8(counted: Callable[..., list[Work]]) -> Callable[..., list[Work]]:
    """Return what counts rounds of a target in fp8.

    Its layers' products read half the bytes at twice the rate. Norms and gates round their rows; of
    a layer's four products only attention's has a kernel for that before it.
    """

    def count(*args: Any, **options: Any) -> list[Work]:
        work = counted(*args, **options)
        products = [one for one in work if one.kind == "weights"]
        halves = [
            one._replace(bytes=one.bytes / 2, operations=one.operations / 2) for one in products
        ]
        scaling = [Work("small", one.kernels, 0, 0) for one in products[1::4]]
        return [one for one in work if one.kind != "weights"] + halves + scaling

    return count


Pricing = Callable[[Replayed, Prices], float]  # milliseconds of a round


def round_prices(count: Callable[..., list[Work]]) -> Pricing:
    """Return what a round takes; each kind is counted at two depths only.

    count: of a method, `masked` or not, as `count_rounds`.
    """

    @cache
    def counted(method: MethodSettings, masked: bool) -> Row:
        return Row("", method, None, count(method, masked=masked), [])

    @cache  # a trace has the same rounds again and again
    def price(of: Replayed, gpu: Prices) -> float:
        if not of.depth:
            return counted(MethodSettings("ar"), False).round_ms(gpu)
        low, high = (
            counted(replace(of.method, depth=depth), of.masked).round_ms(gpu)
            for depth in (SHALLOW, DEEP)
        )
        return low + (high - low) * (of.depth - SHALLOW) / (DEEP - SHALLOW)

    return price


def _traced_cells(
    run: TracedRun, gpus: Sequence[Prices], price: Pricing, images: int
) -> dict[str, str]:
    """Return the cells of a run whose rounds are priced one by one."""
    cells = {"run": run.name} | run.cells()
    rounds, plain = run.rounds(images), run.plain_rounds(images)
    for gpu in gpus:
        time = total_ms(rounds, gpu, price)
        cells[f"{gpu.name}: ms"] = f"{time / rounds.total():.2f}"
        cells[f"{gpu.name}: speed-up"] = f"{plain * price(PLAIN, gpu) / time:.2f}"
    return cells


def total_ms(rounds: Mapping[Replayed, int], gpu: Prices, price: Pricing) -> float:
    """Return what rounds take. rounds: how many of each kind."""
    return sum(count * price(of, gpu) for of, count in rounds.items())


def _gpus(names: str | None) -> list[Prices]:
    """Return the prices of these cards; None: of this machine's, or else of an H100."""
    if names is None:
        names = _own_gpu()
    chosen = list(GPUS) if names == "all" else names.split(",")
    if not set(chosen) <= set(GPUS):
        refuse("gpu", names, f"all, or by commas {', '.join(GPUS)}")
    return [GPUS[name] for name in chosen]


def _own_gpu() -> str:
    """Return this machine's card, or an H100 if it has none, or none that is listed."""
    if not torch.cuda.is_available():
        return "h100"
    card = torch.cuda.get_device_name()
    words = re.split("[^a-z0-9]+", card.lower())  # a GH200 is no H200
    if (name := next(filter(words.__contains__, GPUS), None)) is None:
        print(f"{card} is not among {', '.join(GPUS)}: prices of an H100 instead.")
    return name or "h100"


def _listed(methods: str) -> list[tuple[str, MethodSettings, float | None]]:
    entries = dict.fromkeys(["ar", *methods.split(",")])
    return [(short(entry), held(listed_method(entry, {})), None) for entry in entries]


def _tabled(path: Path) -> list[tuple[str, MethodSettings, float | None]]:
    """Return the methods that were measured, `ar` first, with their accepted lengths."""
    if path.is_dir() and not (path / "benchmark.json").is_file():
        run = read_run(str(path), path.name, "--tau")
        entries = [run.settings | {"tau": tau_of(list(run.records.values()))}]
    else:
        path = path / "benchmark.json" if path.is_dir() else path
        entries = read_object(path).get("rows", [])
    if not entries:
        raise SettingsError(f"--tau: expected a benchmark.json or a run, got {path} without rows")
    table: list[tuple[str, MethodSettings, float | None]] = [("ar", MethodSettings("ar"), 1.0)]
    for entry in entries:
        method = MethodSettings.of({k: v for k, v in entry.items() if v is not None})
        if method.method != "ar":
            depth = entry.get("mean_drafted_depth", 5)
            table.append((words_of(method), held(method, depth), entry["tau"]))
    return table


def open_narrow(model: str, model_path: str | None, folder: Path) -> tuple[Session, int]:
    """Return a session of a narrow model with all layers, and what its widths are divided by."""
    if model not in ("anole", "tiny") or (model == "tiny" and model_path):
        refuse("model", model, "anole, also with --model_path, or tiny")
    scale = 1
    if model == "anole":
        config = anole_config()
        config |= read_object(Path(model_path) / "config.json") if model_path else {}
        if config["vocab_size"] != IDS:
            refuse("model_path", model_path, f"a config.json with Anole's vocab_size {IDS}")
        # two heads, since with one of them a transposition needs no copy
        scale = config["num_attention_heads"] // 2
        config |= {name: config[name] // scale for name in ("hidden_size", "intermediate_size")}
        config |= {"num_attention_heads": 2, "num_key_value_heads": 2}
        Published("anole", config, write_parts)(folder)
    settings = EngineSettings.of(
        {"model_path": str(folder)} if model == "anole" else {}, model=model, dtype="bf16",
        device="cpu", compile="off", method=MethodSettings("eagle2"),
        sampling=SamplingSettings(top_k=2000 if model == "anole" else 0),
    )  # fmt: skip
    return open_session(settings), scale


def _cells(row: Row, plain: Row, gpu: Prices, measured: dict[str, float]) -> dict[str, str]:
    time = row.round_ms(gpu)
    tau, speed, compiled_speed = NONE, NONE, NONE
    if row.tau is not None:
        # a speed-up is a ratio, which moves where prices err in opposite directions
        corners = [gpu.scaled(*change) for change in product((1 - ERROR, 1 + ERROR), repeat=3)]
        around = [row.speedup(plain, corner) for corner in corners]
        tau, compiled_speed = f"{row.tau:.2f}", f"{row.speedup(plain, gpu, True):.2f}"
        speed = f"{row.speedup(plain, gpu):.2f} ({min(around):.2f}-{max(around):.2f})"
    cells = {
        "method": row.name,
        "kernels": f"{_count(row.work):.0f}",
        "GB": f"{sum(work.kernels * work.bytes for work in row.work) / 1e9:.1f}",
        "GFLOP": f"{sum(work.kernels * work.operations for work in row.work) / 1e9:.0f}",
        "launched ms": f"{gpu.launched(row.work) + row.rule_ms(gpu):.1f}",
        "replayed ms": f"{time:.1f} ({(1 - ERROR) * time:.1f}-{(1 + ERROR) * time:.1f})",
        **{kind: f"{milliseconds:.2f}" for kind, milliseconds in row.replayed(gpu).items()},
        "tau": tau,
        "predicted speed-up": speed,
        "inductor: kernels": f"{_count(row.compiled):.0f}",
        "ms": f"{row.round_ms(gpu, True):.1f}",
        "speed-up": compiled_speed,
    }
    if (milliseconds := measured.get(words_of(row.method))) is not None:
        cells["measured ms"] = f"{milliseconds:.1f}"
    return cells


def _measured(path: str | None, images: int) -> dict[str, float]:
    """Return the milliseconds of replayed rounds that scripts.gpu.rounds measured, by method."""
    times = {}
    for line in read_lines(Path(path)) if path else ():
        given, figures = line["conditions"], line.get("figures", {})
        if (given["batch_size"], given["compile"]) == (
            images,
            "auto",
        ) and "ms_per_round" in figures:
            times[method_words(given)] = figures["ms_per_round"]
    return times


def _assumptions(gpus: Sequence[Prices], tau: str | None) -> str:
    texts = [
        f"Every price may be wrong by {ERROR:.0%} in either direction: hence the ranges.",
        f"Products reach {REACHED:.0%} of the bandwidth or {COMPUTED:.0%} of the rate, attention "
        f"{CACHE_REACHED:.0%} of the bandwidth.",
        *(
            f"{gpu.name}: {gpu.gb_per_s} GB/s, {gpu.tflops} TFLOP/s; a kernel of a graph takes at "
            f"least {gpu.replayed_us} us, a launched operation {gpu.launched_us} us of the host."
            for gpu in gpus
        ),
        "An operation of PyTorch is one kernel; sort, argsort and topk are four, over a vocabulary "
        f"as long as {WIDE_KERNELS}. A compiled one has one per product, and one per reduction in "
        "between or one.",
        f"Two kernels choose tokens. One cuts and norms a distribution, as long as {CUT_KERNELS} "
        f"small ones; one takes the best n codes, as long as 1 + n / {BEST_CODES} (estimated).",
        f"Another judges drafts by rules other than exact, as long as {ROW_KERNELS} + "
        f"{CHILD_KERNELS} n, where n is the most children of a node (estimated).",
        f"{GAP_US} us pass between two kernels of a graph. The host takes {HOST_MS} ms between "
        f"rounds; a rule that walks there takes {RULE_MS} ms more. Of rounds whose sizes do not "
        f"depend on the last one, {HIDDEN:.0%} of that is hidden (estimated).",
        "Half of the image is in the cache. Adaptive trees keep one depth and "
        "width, but those of --trace.",
        "Rounds are counted as launched on a CPU; a graph pads them to its largest size.",
    ]
    if tau is not None:
        texts.append(f"Accepted lengths are those of {tau}, whatever model made it.")
    return "Assumptions:\n" + "\n".join(f"- {text}" for text in texts)


if __name__ == "__main__":
    run_script(predict)
