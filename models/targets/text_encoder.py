"""T5's encoder (arXiv 1910.10683) as LlamaGen's recipe runs it: google/flan-t5-xl in bf16, 120 slots per caption."""

import pickle
import re
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase, T5Config, T5EncoderModel
from transformers.utils import logging

from models.files.weights import read_json
from models.targets.captions import clean_caption

_FLAG = "--text_encoder_path"
_FAULTS = (OSError, ValueError, RuntimeError, KeyError, SafetensorError, pickle.UnpicklingError)


class TextEncoder:
    """Text -> features of its tokens.

    Args:
        tokenizer: pads on the right.
        model: T5's encoder.
        length: tokens of a caption, its end token included; longer captions lose their end, as in the recipe.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, model: T5EncoderModel, length: int):
        self.tokenizer, self.length = tokenizer, length
        self.model = model.eval().requires_grad_(False)

    @classmethod
    def load(cls, path: str, length: int, device: torch.device) -> "TextEncoder":
        """Read a folder or hub id in bf16, whatever the target's type; HF_HUB_OFFLINE is honoured.

        Raises:
            ValueError: naming the flag, the path and what is missing, damaged or of another kind.
        """
        check_kind(path)
        logging.disable_progress_bar()
        try:
            tokenizer = AutoTokenizer.from_pretrained(path)
            model, report = T5EncoderModel.from_pretrained(
                path, dtype=torch.bfloat16, output_loading_info=True
            )
        except _FAULTS as error:
            pickled = isinstance(error, pickle.UnpicklingError)
            why = "damaged, or more than tensors and plain values" if pickled else error
            raise ValueError(
                f"{_FLAG}: {path} cannot be read as a T5 encoder with its tokenizer: {why}"
            ) from error
        if report["missing_keys"]:
            raise ValueError(
                f"{_FLAG}: {path} lacks the weights {', '.join(sorted(report['missing_keys']))}"
            )
        if tokenizer.pad_token is None:
            raise ValueError(f"{_FLAG}: {path} has a tokenizer without a padding token")
        return cls(tokenizer, model.to(device), length)

    @property
    def width(self) -> int:
        """Width of the features."""
        return self.model.config.d_model

    @torch.inference_mode()
    def __call__(self, text: str) -> Tensor:
        """Features (n, width), n <= length, of the cleaned text's tokens, its end token included.

        The encoder reads `length` tokens, padded ones hidden, as in the recipe, so that rounding is the recipe's.
        """
        tokens = self.tokenizer(
            clean_caption(text),
            max_length=self.length,
            padding="max_length",
            truncation=True,
            return_tensors="pt",
        )
        ids, mask = (tokens[name].to(self.model.device) for name in ("input_ids", "attention_mask"))
        features = self.model(input_ids=ids, attention_mask=mask).last_hidden_state[0]
        return features[: int(mask.sum())]


def check_kind(path: str) -> None:
    """A ValueError unless `path` is a folder of a T5 model or looks like a hub id: transformers would take the sizes of
    a small T5 for a folder without config.json."""
    if Path(path).is_dir():
        kind = read_json(Path(path) / "config.json").get("model_type")
        if kind != T5Config.model_type:
            raise ValueError(
                f"{_FLAG}: {path} holds a model of type {kind!r}; allowed: {T5Config.model_type!r}"
            )
    elif Path(path).exists() or not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", path):
        raise ValueError(
            f"{_FLAG}: {path!r} is neither a folder nor a hub id such as google/flan-t5-xl"
        )
