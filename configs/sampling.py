"""How a token is drawn from the target's logits."""

from dataclasses import dataclass

from configs.fields import Settings, refuse, setting


@dataclass(frozen=True)
class SamplingSettings(Settings, group="Sampling"):
    """The sampling distribution: guidance, then temperature, then top-k, then top-p."""

    cfg: float = setting(
        "guidance scale, 1 = no guidance",
        3.0,
        above=0,  # 0 switches guidance off in other programs, but here it would ignore the prompt
        high=100,
        wanted="1 for no guidance, or another number above 0, at most 100",
        shown="3.0; glm_image and image_gpt 1, which have no guidance",
    )
    temperature: float = setting("sampling temperature, 0 = argmax", 1.0, low=0, high=100)
    top_k: int = setting("sample from the k likeliest codes, 0 = off", 0, low=0)
    top_p: float = setting(
        "sample from the likeliest codes with this total probability; 1 = off", 1.0, above=0, high=1
    )

    def settle(self) -> None:
        if 0 < self.temperature < 1e-3:
            refuse("temperature", self.temperature, "0 (argmax), or 0.001 to 100")

    @property
    def guidance(self) -> int:
        """Guidance rows per image: 2 with guidance, 1 without."""
        return 1 if self.cfg == 1 else 2
