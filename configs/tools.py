"""Settings of `inspect` and `vq_distances`, which look at a checkpoint, and of the page, `demo`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from configs.fields import Settings, Values, part, setting
from configs.methods import MethodSettings
from configs.model import EngineSettings
from configs.targets import model_place


@dataclass(frozen=True)
class InspectSettings(Settings, group="Report"):
    """What to look at, the run whose memory is computed, and whether to run it."""

    engine: EngineSettings = part(EngineSettings)
    run: bool = setting("load the model and check that it works; takes a minute", False)

    @classmethod
    def of(cls, values: Mapping[str, Any] | None = None, /, **more: Any) -> Self:
        """Make the settings; the drafter is looked at if it is named, or is in the model's."""
        values = {**(values or {}), **more}
        place = model_place(values.get("model", "tiny"), values.get("model_path"))
        drafted = "drafter_path" in values or (Path(place) / "drafter").is_dir()
        engine = EngineSettings.of(values, method=MethodSettings("adt" if drafted else "ar"))
        return super().of(values, engine=engine)


@dataclass(frozen=True)
class DistanceSettings(Settings, group="Table"):
    """The table of nearest codes that relaxed rules read."""

    neighbours: int | None = setting(
        "nearest codes per code", low=1, high=2**16 - 1, shown="all others"
    )
    engine: EngineSettings = part(EngineSettings)  # its target is read


@dataclass(frozen=True)
class PageSettings(Settings, group="Page"):
    """Where the page and the OpenAI image API are served, and the model behind them."""

    port: int = setting("port of the page, http://127.0.0.1:PORT", 7860, low=1, high=65535)
    share_on: str = setting(
        "address to listen on; 0.0.0.0 lets other machines connect",
        "127.0.0.1",
        shown="127.0.0.1, this machine only",
    )
    output_dir: str = setting("folder for files that the page writes", "outputs/page", path=True)
    visitors: int = setting(
        "visitors of the page, and requests to the API, that may wait", 16, low=1, high=10000
    )
    api_key: str | None = setting(
        "key that API requests must have, as `Authorization: Bearer KEY`; the page needs none",
        shown="none",
        pattern="[!-~]([ -~]*[!-~])?",  # what an HTTP header can hold
        wanted="printable ASCII characters, with no space at either end",
    )
    batch_size: int = setting("images of API requests generated together", 4, low=1, high=1024)
    engine: EngineSettings = part(EngineSettings)  # with the method that the page begins with
    drafted: bool = False  # whether a drafter is there, for methods that need one
    given: Values = field(default_factory=dict, compare=False)  # what all were made of, by flag
