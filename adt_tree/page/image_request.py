"""What a request for images to the OpenAI API may say."""

import secrets
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any

from adt_tree.sources import ALIASES
from configs.commands import flags_of
from configs.fields import (
    Settings,
    SettingsError,
    build,
    near_names,
    refuse,
    renamed_flags,
    setting,
)

MOST_IMAGES = 10  # as the API says
_IGNORED = ("user", "safety_identifier")  # who asks: changes nothing
_WHOLE = ", since only finished images are sent"


@dataclass(frozen=True)
class ImageRequest(Settings):
    """The API's parameters, and ours: seed, method and sampling.

    None: the server's own. A value that would have no effect is refused.
    """

    prompt: str = setting(MISSING, "what the images show")
    model: str | None = setting(None, "the loaded model's name")
    n: int = setting(1, "images", low=1, high=MOST_IMAGES)
    size: str = setting("auto", "width x height in pixels")
    seed: int | None = setting(None, "base seed; another each time", low=0, high=2**63 - 1)
    method: str | None = setting(None, "how to draft")
    cfg: float | None = setting(None, "guidance scale")
    temperature: float | None = setting(None, "sampling temperature")
    top_k: int | None = setting(None, "sample from the k likeliest codes")
    top_p: float | None = setting(None, "sample from the likeliest codes with this probability")
    response_format: str = setting(
        "b64_json",
        "how images come back",
        choices=("b64_json",),
        wanted="b64_json, since this server stores no images",
    )
    output_format: str = setting("png", "file format", choices=("png",))
    background: str = setting("auto", "transparent or not", choices=("auto", "opaque"))
    quality: str = setting("auto", "a model has one quality", choices=("auto", "standard"))
    moderation: str = setting("auto", "prompts are not filtered", choices=("auto", "low"))
    stream: bool = setting(
        False, "send images before they are finished", choices=(False,), wanted=f"false{_WHOLE}"
    )
    partial_images: int = setting(0, "unfinished images to send", choices=(0,), wanted=f"0{_WHOLE}")

    def settle(self) -> None:
        self.fill(seed=secrets.randbelow(2**32))


NAMES = tuple(f.name for f in fields(ImageRequest))


class Problem(Exception):
    """Why a request has no answer, as the API tells it."""

    def __init__(self, status: int, message: str, param: str | None = None, code: str = ""):
        """status: of HTTP; param: the parameter to change; code: for programs."""
        super().__init__(message)
        self.status, self.param, self.code = status, param, code or None

    @property
    def body(self) -> dict[str, Any]:
        kind = {429: "rate_limit_error", 500: "server_error"}.get(
            self.status, "invalid_request_error"
        )
        told = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return {"error": told}


def image_request(values: Mapping[str, Any]) -> ImageRequest:
    """Return the request of a body; a Problem for an unknown parameter."""
    given = {name: v for name, v in values.items() if v is not None and name not in _IGNORED}
    for name in given:
        if name not in NAMES:
            text = f"Unknown parameter: {name!r}. {_advice(name)}"
            raise Problem(400, text.strip(), name, "unknown_parameter")
    if isinstance(given.get("prompt"), list):
        refuse("prompt", given["prompt"], "one text", "Send one request per prompt.")
    return build(ImageRequest, given)


def _advice(name: str) -> str:
    """Return what to do instead of giving a parameter that requests do not have."""
    if ALIASES.get(name) in NAMES:
        return f"Use {ALIASES[name]}."
    if (flag := ALIASES.get(name, name)) in flags_of("demo"):
        return f"It is set when the server starts, by --{flag}."
    return near_names(name, NAMES)


def refusal(error: SettingsError) -> Problem:
    """Return the problem of a value; its message names parameters as the API does."""
    text = renamed_flags(str(error), dict(zip(NAMES, NAMES, strict=True)))
    name = text.partition(":")[0]
    return Problem(400, text, name if name in NAMES else None, "invalid_value")
