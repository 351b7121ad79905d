"""Settings of `train_drafter`."""

import os
import re
from dataclasses import MISSING, dataclass, field
from pathlib import Path

from configs.fields import Settings, join_list, part, refuse, setting, split_list
from configs.methods import MethodSettings
from configs.model import EngineSettings

_NUMBERS = "numbers of layers from 1 on, rising, by commas"
# What a block head is trained with, and how errors call it. It generates its images in every
# update, so nothing of them can be kept.
_BLOCK = {
    "alignment": ("inference", "inference"),
    "guidance_aware": (True, "on"),
    "agreement": ("noise", "noise"),
    "cache_features": (None, "off"),
}
# Flags of the model that a training has.
OF_TARGET = (
    "model",
    "model_path",
    "tokenizer_path",
    "vq_path",
    "text_encoder_path",
    "target_size",
    "negative_prompt",
    "dtype",
    "device",
)
# What may differ between two commands that fill the same folder: it does not change the training.
FREE_FLAGS = (
    "output_dir",
    "accumulate",  # nor does this, up to rounding, as the number of processes
    "save_every",
    "eval_every",
    "log_every",
    "eval_images",
    "eval_method",
    "cache_features",
    "tensorboard",
    "device",
)


@dataclass(frozen=True)
class TrainSettings(Settings, group="Training"):
    """What a drafter is trained on, and how. A batch is that of all processes together."""

    tokens: str = setting(
        "folder that extract_tokens wrote; several by commas, in double quotes if a name has one",
        MISSING,
        wanted="a folder that extract_tokens wrote",
        many=True,
    )
    output_dir: str = setting(
        "folder of the log, the checkpoint and the drafter", MISSING, path=True, wanted="a folder"
    )
    start_from: str | None = setting(
        "a drafter's folder, or owner/name, to begin with", path=True, shown="random weights"
    )
    drafter: str = setting(
        "eagle: a head that drafts level by level; block: an EAGLE head that drafts a whole tree "
        "in three passes, trained on its own rounds",
        "eagle",
        choices=("eagle", "block"),
    )
    layers: int | None = setting(
        "decoder layers of the drafter", low=1, high=16, shown="1, or as --start_from"
    )
    target_layers: str | None = setting(
        "the target's layers whose hidden states an EAGLE head also reads, by commas, such as "
        "4,8,12; with --start_from a head may learn to",
        shown="none, or as --start_from",
        many=True,
    )
    steps: int = setting("updates", 2000, low=1)
    batch_size: int = setting("images per update, of all processes together", 16, low=1, high=65536)
    accumulate: int = setting(
        "parts that a process computes its images of an update in, for less memory", 1, low=1
    )
    optimizer: str = setting(
        "muon: for matrices, AdamW for the rest", "adamw", choices=("adamw", "muon")
    )
    lr: float = setting("peak learning rate, with cosine decay", 1e-3, above=0, high=1)
    warmup: float = setting(
        "share of the steps in which the learning rate rises", 0.03, low=0, high=1
    )
    clip: float = setting("greatest norm of an update's gradient", 0.5, above=0)
    ema: float = setting(
        "decay of the averaged weights, which are exported; 0 = off", 0.998, low=0, high=0.99999
    )
    precision: str = setting("number type of matrix products", "fp32", choices=("fp32", "bf16"))
    seed: int = setting("seed of initial weights, order and noise", 0, low=0, high=2**63 - 1)
    # Trained on one level, deeper drafts hit less often (docs/results/tokens.md).
    depths: int = setting("unrolled levels of the draft tree", 2, low=1, high=8)
    guidance_aware: bool = setting(
        "score the guided distribution of both rows; off: each row's own, one row in ten without "
        "its caption",
        True,
    )
    ce_weight: float = setting(
        "weight of the cross-entropy; that of the regression of features is 1", 0.1, low=0
    )
    agreement_weight: float = setting(
        "weight of the share of choices that differ from the target's under the image's noise",
        0.0,
        low=0,
    )
    agreement: str = setting(
        "how choices are compared for that weight. noise: under the same noise; overlap: at best, "
        "which is 1 - the total variation and takes a quarter less time",
        "noise",
        choices=("noise", "overlap"),
    )
    feature_noise: float = setting(
        "the target's features are shifted by up to this, uniformly", 0.05, low=0
    )
    alignment: str = setting(
        "shifted: feature t with token t, as earlier code, for ablations",
        "inference",
        choices=("inference", "shifted"),
    )
    # A head ignores the tokens if their embeddings are much smaller than the features.
    enlarge_embeddings: bool = setting(
        "to the features' size, in training; off: as they are, as EAGLE does, for ablations", True
    )
    cache_features: str | None = setting(
        "folder of the target's features, computed once and read again",
        path=True,
        shown="off: computed at every step",
    )
    holdout: int = setting("images kept from training, for figures", 16, low=1)
    train_images: int = setting(
        "train on this many of the others, to see what more would bring; 0 = all", 0, low=0
    )
    eval_images: int = setting(
        "how many held-out captions to decode when measuring tau and speed-up", 4, low=0
    )
    eval_method: str = setting(
        "what is measured next to ar: name[:flag=value...]",
        "adt",
        shown="adt; block with --drafter block",
    )
    eval_every: int = setting(
        "steps between evaluations; one is at the end in any case", 1000, low=1
    )
    save_every: int = setting("steps between checkpoints", 200, low=1)
    log_every: int = setting("steps that a line of the log is the mean of", 10, low=1)
    tensorboard: str | None = setting(
        "folder that gets the log's figures for TensorBoard as well", path=True, shown="off"
    )
    engine: EngineSettings = part(EngineSettings)  # opens the target for plain decoding
    evaluated: MethodSettings = field(default_factory=MethodSettings)  # what --eval_method says

    def settle(self) -> None:
        folders = [os.path.expanduser(name) for name in self.token_folders]
        if not all(folders) or len({os.path.realpath(name) for name in folders}) < len(folders):
            refuse("tokens", self.tokens, "folder names between the commas, each once")
        self.put(tokens=join_list(folders))
        if self.batch_size % self.accumulate:
            allowed = f"a divisor of --batch_size, which is {self.batch_size}"
            refuse("accumulate", self.accumulate, allowed)
        if list(self.layers_read) != sorted(set(self.layers_read)):
            refuse("target_layers", self.target_layers, _NUMBERS)
        for name, (value, shown) in _BLOCK.items():
            if self.drafter == "block" and getattr(self, name) != value:
                refuse(name, getattr(self, name), f"{shown} with --drafter block")
        if not self.evaluated.drafted:
            refuse("eval_method", self.eval_method, "a method that has a drafter")

    @property
    def token_folders(self) -> list[str]:
        return split_list(self.tokens)

    @property
    def layers_read(self) -> tuple[int, ...]:
        if self.target_layers is None:
            return ()
        if not re.fullmatch(r"[1-9][0-9]{0,3}(,[1-9][0-9]{0,3})*", self.target_layers):
            refuse("target_layers", self.target_layers, _NUMBERS)
        return tuple(map(int, self.target_layers.split(",")))

    @property
    def folder(self) -> Path:
        return Path(self.output_dir)
