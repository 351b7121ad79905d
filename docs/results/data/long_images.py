"""One image of Emu3 at full length on a thin model with random weights; `PYTHONPATH=tests:.`."""

import resource
import time
from dataclasses import replace
from pathlib import Path

from small_emu3 import Emu3Sizes, emu3_settings, write_emu3

from configs.methods import MethodSettings
from configs.model import SamplingSettings
from decoding.images import Job
from runs.session import open_session

sizes = Emu3Sizes(size="720x720", codes=32768, hidden=64, positions=9216)
settings = emu3_settings(write_emu3(Path("work/long"), sizes), "fp32")
session = open_session(replace(settings, target_size="720x720"))
engine = session.open_engine(MethodSettings("ar"), SamplingSettings(cfg=3.0, top_k=2048), images=1)
for step in engine.generate([Job("0", "a red cat", 1)]):
    if (at := step.rounds[0].position) % 500 == 0:
        print(at, time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
