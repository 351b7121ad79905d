"""What the command demo is asked for."""

from dataclasses import dataclass, field
from typing import ClassVar

from configs.fields import Settings, Values, part, setting
from configs.model import EngineSettings


@dataclass(frozen=True)
class PageSettings(Settings):
    """Where the page is served, and the model behind it.

    engine: the model's settings, with the method that the page begins with. drafted: whether a
    drafter is there, for methods that need one. given: what they were made of, by flag.
    """

    group: ClassVar[str] = "Page"
    port: int = setting(7860, "port of the page, http://127.0.0.1:PORT", low=1, high=65535)
    share_on: str = setting(
        "127.0.0.1",
        "address that the page listens on: 0.0.0.0 lets other machines reach it",
        shown="127.0.0.1, this machine only",
    )
    output_dir: str = setting(
        "outputs/page", "folder of all that the page writes: what rounds cost here", path=True
    )
    visitors: int = setting(
        16, "visitors that may wait while another one's images are drawn", low=1, high=10000
    )
    engine: EngineSettings = part(EngineSettings)
    drafted: bool = False
    given: Values = field(default_factory=dict, compare=False)
