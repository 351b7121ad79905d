"""T5's encoder (arXiv 1910.10683) as in LlamaGen's recipe: google/flan-t5-xl in bf16, 120 slots."""

import math
import pickle
import re
from pathlib import Path

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerBase, T5Config, T5EncoderModel
from transformers.utils import logging

from configs.downloads import damage
from configs.fields import mismatch
from models.files.gather import shape_faults, shown
from models.files.names import T5_TOKENIZERS
from models.files.weights import folder_shapes
from models.targets.captions import clean_caption
from support.json_files import read_object

_FLAG = "--text_encoder_path"
_BLOCK = re.compile(r"encoder\.block\.(\d+)\.")


class TextEncoder:
    """Turn text into features of its tokens.

    Args:
        tokenizer: pads on the right.
        model: T5's encoder.
        length: tokens of a caption, with its end token; longer captions are cut, as in the recipe.
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
        tokenizer = load_tokenizer(path)
        try:
            model, report = T5EncoderModel.from_pretrained(
                path, dtype=torch.bfloat16, output_loading_info=True
            )
        except Exception as error:  # on junk transformers fails with whatever its bytes lead to
            pickled = isinstance(error, pickle.UnpicklingError)
            why = "damaged, or more than tensors and plain values" if pickled else error
            why = damage(Path(path), why)
            raise ValueError(f"{_FLAG}: {path} cannot be read as a T5 encoder: {why}") from error
        if report["missing_keys"]:
            raise ValueError(
                f"{_FLAG}: {path} lacks the weights {', '.join(sorted(report['missing_keys']))}"
            )
        return cls(tokenizer, model.to(device), length)

    @property
    def width(self) -> int:
        """Width of the features."""
        return self.model.config.d_model

    @torch.inference_mode()
    def __call__(self, text: str) -> Tensor:
        """Return the features (n, width), n <= length, of the cleaned text with its end token.

        The encoder reads `length` tokens with the padding masked, so that it rounds as the recipe.
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
    """Raise a ValueError unless `path` is a folder of a T5 model or looks like a hub id.

    transformers would take the sizes of a small T5 for a folder without config.json.
    """
    if Path(path).is_dir():
        kind = read_object(Path(path) / "config.json").get("model_type")
        if kind != T5Config.model_type:
            source = f"{_FLAG}: {path}/config.json: model_type"
            raise mismatch(source, repr(kind), repr(T5Config.model_type))
        _check_layers(Path(path))
    elif Path(path).exists() or not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*", path):
        raise ValueError(
            f"{_FLAG}: {path!r} is neither a folder nor a hub id such as google/flan-t5-xl"
        )


def _check_layers(folder: Path) -> None:
    """Raise a ValueError unless the weights hold as many layers as config.json says."""
    stated = read_object(folder / "config.json").get("num_layers", T5Config().num_layers)
    numbers = (_BLOCK.match(key) for key in _shapes(folder))
    held = max((int(match[1]) for match in numbers if match), default=-1) + 1
    if stated != held:
        raise ValueError(
            f"{_FLAG}: {folder / 'config.json'}: num_layers is {stated}, the weights hold {held}"
        )


def _shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    try:
        return folder_shapes(folder)
    except ValueError as error:
        raise ValueError(f"{_FLAG}: {folder} cannot be read as a T5 encoder: {error}") from error


def check_encoder(folder: Path) -> tuple[int, int]:
    """Check a T5 encoder's files without reading the weights; return its width and parameter count.

    Raises:
        ValueError: naming the flag, the folder and what is missing, damaged or of another kind.
    """
    check_kind(str(folder))
    if not any((folder / name).is_file() for name in T5_TOKENIZERS):
        raise ValueError(f"{_FLAG}: {folder} has no tokenizer: none of {', '.join(T5_TOKENIZERS)}")
    load_tokenizer(str(folder))
    shapes = _shapes(folder)
    try:
        # without memory: only names and shapes are compared
        with torch.device("meta"):
            model = T5EncoderModel(T5Config.from_pretrained(folder))
    except Exception as error:  # transformers checks its own entries, each with its own exception
        raise ValueError(f"{_FLAG}: {folder / 'config.json'}: {error}") from error
    shared = {"shared.weight": "encoder.embed_tokens.weight"}  # one tensor under either name
    expected = {name: tuple(value.shape) for name, value in model.named_parameters()}
    stored = {name: shapes.get(name, shapes.get(shared.get(name))) for name in expected}
    here = {name: shape for name, shape in stored.items() if shape is not None}  # no decoder
    if faults := shape_faults(here, expected):
        raise ValueError(f"{_FLAG}: {folder}: {shown(faults)}")
    return model.config.d_model, sum(map(math.prod, expected.values()))


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """Return the tokenizer of a folder or hub id; ValueError if it cannot be used."""
    try:
        # split_special_tokens: the name of a control token in a caption is text
        tokenizer = AutoTokenizer.from_pretrained(path, split_special_tokens=True)
    except (
        Exception
    ) as error:  # tokenizers raises bare Exception, transformers whatever junk leads to
        raise ValueError(
            f"{_FLAG}: {path} cannot be read as a tokenizer: {damage(Path(path), error)}"
        ) from error
    if tokenizer.pad_token is None:
        raise ValueError(f"{_FLAG}: {path} has a tokenizer without a padding token")
    return tokenizer
