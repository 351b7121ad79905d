"""Settings of `inspect` and `vq_distances`, which look at a checkpoint, and of the page, `demo`."""

from dataclasses import dataclass, field
from pathlib import Path

from configs.fields import Settings, Values, build, part, setting, settings_dict
from configs.methods import MethodSettings
from configs.model import CodecSettings, EngineSettings, LoadedSettings, PlacementSettings
from configs.sampling import SamplingSettings


@dataclass(frozen=True)
class InspectSettings(PlacementSettings, LoadedSettings, group="Report"):
    """What to look at, the run whose memory is computed, and whether to run it."""

    sampling: SamplingSettings = part(SamplingSettings)
    run: bool = setting("load the model and check that it works; takes a minute", False)

    def settle(self) -> None:
        drafter = Path(self.model_path) / "drafter"
        self.fill(drafter_path=str(drafter) if drafter.is_dir() else None)

    @property
    def engine(self) -> EngineSettings:
        """What loads the model: with its drafter, if there is one."""
        method = MethodSettings("ar" if self.drafter_path is None else "adt")
        values = {name: value for name, value in settings_dict(self).items() if value is not None}
        return build(EngineSettings, values, method=method)


@dataclass(frozen=True)
class DistanceSettings(CodecSettings, group="Table"):
    """The table of nearest codes that relaxed rules read."""

    neighbours: int | None = setting(
        "nearest codes per code", low=1, high=2**16 - 1, shown="all others"
    )


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
    batch_size: int = setting("images of API requests generated together", 4, low=1, high=1024)
    engine: EngineSettings = part(EngineSettings)  # with the method that the page begins with
    drafted: bool = False  # whether a drafter is there, for methods that need one
    given: Values = field(default_factory=dict, compare=False)  # what all were made of, by flag
