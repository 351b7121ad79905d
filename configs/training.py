"""Settings of `train_drafter`."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from configs.fields import check_fields, refuse, setting
from configs.methods import MethodSettings, SamplingSettings
from configs.schema import RunSettings
from configs.tools import like

# What may differ between two commands that fill the same folder: it does not change what is trained.
FREE_FLAGS = ("output_dir", "save_every", "eval_every", "log_every", "eval_images", "eval_method", "cache_features",
              "device", "estimate")  # fmt: skip


@dataclass(frozen=True)
class TrainSettings:
    """What a drafter is trained on, and how. A batch is that of all processes together."""

    group: ClassVar[str] = "Training"
    tokens: str = setting(
        "", "folder that extract_tokens wrote; several by commas", shown="required"
    )
    output_dir: str = setting(
        "", "folder of the log, the checkpoint and the drafter", shown="required"
    )
    model: str = like(RunSettings, "model")
    model_path: str | None = like(RunSettings, "model_path")
    tokenizer_path: str | None = like(RunSettings, "tokenizer_path")
    target_size: str | None = like(RunSettings, "target_size")
    text_encoder_path: str | None = like(RunSettings, "text_encoder_path")
    vq_path: str | None = like(RunSettings, "vq_path")
    dtype: str = like(RunSettings, "dtype")
    device: str = like(RunSettings, "device")
    start_from: str | None = setting(
        None, "a drafter's folder, or owner/name, to begin with", shown="random weights"
    )
    layers: int | None = setting(
        None, "decoder layers of the drafter", low=1, high=16, shown="1, or as --start_from"
    )
    steps: int = setting(2000, "updates", low=1)
    batch_size: int = setting(16, "images per update, of all processes together", low=1, high=65536)
    accumulate: int = setting(
        1, "parts that a process computes its images of an update in, for less memory", low=1
    )
    optimizer: str = setting(
        "adamw", "muon: for matrices, AdamW for the rest", choices=("adamw", "muon")
    )
    lr: float = setting(1e-3, "highest learning rate; it falls as a cosine", above=0, high=1)
    warmup: float = setting(
        0.03, "share of the steps in which the learning rate rises", low=0, high=1
    )
    clip: float = setting(0.5, "greatest norm of an update's gradient", above=0)
    ema: float = setting(
        0.998, "decay of the averaged weights, which are exported; 0 = off", low=0, high=0.99999
    )
    precision: str = setting("fp32", "of matrix products in training", choices=("fp32", "bf16"))
    seed: int = setting(0, "of weights, order and noise", low=0, high=2**63 - 1)
    depths: int = setting(2, "unrolled levels of the draft tree", low=1, high=8)
    guidance_aware: bool = setting(
        True,
        "score the guided law of both rows; off: each row's own, one row in ten without its caption",
    )
    ce_weight: float = setting(
        0.1, "weight of the cross-entropy beside the regression of features", low=0
    )
    agreement_weight: float = setting(
        0.0,
        "weight of the share of choices that differ from the target's under the image's noise",
        low=0,
    )
    feature_noise: float = setting(
        0.05, "the target's features are shifted by up to this, uniformly", low=0
    )
    alignment: str = setting(
        "inference",
        "shifted: feature t with token t, as earlier code, for ablations",
        choices=("inference", "shifted"),
    )
    enlarge_embeddings: bool = setting(
        True, "to the features' size, in training; off: as they are, as EAGLE does, for ablations"
    )
    cache_features: str | None = setting(
        None,
        "folder of the target's features, computed once and read again",
        shown="off: computed at every step",
    )
    holdout: int = setting(16, "images kept from training, for figures and calibration", low=1)
    eval_images: int = setting(
        4, "captions of these that are decoded to measure tau and speed-up", low=0
    )
    eval_method: str = setting("adt", "what is measured beside ar: name[:flag=value...]")
    eval_every: int = setting(
        1000, "steps between evaluations; one is at the end in any case", low=1
    )
    save_every: int = setting(200, "steps between checkpoints", low=1)
    log_every: int = setting(10, "steps that a line of the log is the mean of", low=1)
    estimate: bool = setting(False, "print the memory and the work that training needs, and stop")
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    evaluated: MethodSettings = field(default_factory=MethodSettings)  # what --eval_method says
    run: RunSettings = field(init=False)  # target and sampling law

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("output_dir", "start_from", "cache_features"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, os.path.expanduser(getattr(self, name)))
        object.__setattr__(self, "tokens", ",".join(map(os.path.expanduser, self.token_folders)))
        if self.batch_size % self.accumulate:
            refuse(
                "accumulate",
                self.accumulate,
                f"a divisor of --batch_size, which is {self.batch_size}",
            )
        if not self.evaluated.drafted:
            refuse("eval_method", self.eval_method, "a method that has a drafter")
        names = (
            "model",
            "model_path",
            "tokenizer_path",
            "target_size",
            "text_encoder_path",
            "vq_path",
            "dtype",
        )
        shared = {name: getattr(self, name) for name in (*names, "device")}
        plain = RunSettings(
            prompt="-", sampling=self.sampling, method=MethodSettings(method="ar"), **shared
        )
        object.__setattr__(self, "run", plain)
        for name in names:  # with the defaults of the model
            object.__setattr__(self, name, getattr(plain, name))

    @property
    def token_folders(self) -> list[str]:
        """The folders of --tokens."""
        return self.tokens.split(",")

    @property
    def guidance(self) -> int:
        """Rows per image of the sampling law."""
        return 1 if self.sampling.cfg == 1 else 2

    @property
    def rows(self) -> int:
        """Rows per image that an update computes."""
        return self.guidance if self.guidance_aware else 1

    @property
    def folder(self) -> Path:
        return Path(self.output_dir)
