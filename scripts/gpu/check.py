"""Check correctness and speed on a CUDA machine, in parts, the most important first.

Needs no network. Writes check.jsonl as it goes, and check.json and check.md at the end, into
--output; the same command continues where one stopped.
"""

import platform
import subprocess
import sys

import torch

from configs.targets import ROOT
from eval.bench.machine import cpu_name
from scripts.gpu.options import Options, read_options
from scripts.gpu.packages import NEEDED, OPTIONAL, missing
from scripts.gpu.record import Figures, Record
from scripts.gpu.summary import document, page
from support.border import Failure, run_guarded
from support.durable import encode_json, replace_file


def run() -> None:
    """Run the parts, one process each, then write and print what came of them.

    Raises:
        Failure: a piece failed; says which.
    """
    if absent := missing(NEEDED):
        raise Failure(f"the packages {', '.join(absent)} are missing; nothing runs without them")
    lacking = missing(OPTIONAL)
    for name in lacking:
        print(f"the package {name} is missing: without it, no {OPTIONAL[name]}", file=sys.stderr)
    options = read_options(sys.argv[1:], __doc__)
    record = Record(options.output)
    record.begin(machine(options))
    for part in options.parts:
        command = [sys.executable, "-m", "scripts.gpu.part", *options.words(part)]
        done = subprocess.run(command, cwd=ROOT, check=False)
        if done.returncode:
            record.add(part, {"part": part, "error": f"ended with exit code {done.returncode}"})
    content = document(record.lines(), lacking)
    replace_file(options.output / "check.json", encode_json(content))
    text = page(content)
    replace_file(options.output / "check.md", text.encode())
    print(text)
    if content["failed"]:
        raise Failure(f"{len(content['failed'])} failed: {', '.join(content['failed'])}")


def machine(options: Options) -> Figures:
    """Return what figures depend on and what must be the same when the check continues."""
    on_gpu = options.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(options.device) if on_gpu else "cpu",
        "cpu": cpu_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "small": options.small,
    }


if __name__ == "__main__":
    sys.exit(run_guarded(run, refusals=ValueError))
