"""T5's encoder (arXiv 1910.10683) as in LlamaGen's recipe: google/flan-t5-xl in bf16, 120 slots."""

import re
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from configs.downloads import damage
from configs.fields import Flag, mismatch, refusing
from models.files.entries import library_errors
from models.files.network import Network, Slot
from models.files.weights import T5_TOKENIZERS, folder_shapes
from models.targets.captions import clean_caption
from support.json_files import read_object

if TYPE_CHECKING:  # transformers' networks take seconds to load, and only this family needs one
    from transformers import PreTrainedTokenizerBase

_FLAG = "--text_encoder_path"
_BLOCK = re.compile(r"encoder\.block\.(\d+)\.")


class TextEncoder:
    """Turn text into features of its tokens; captions are cut to `length`, as in the recipe."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", model: nn.Module, length: int):
        self.tokenizer, self.model, self.length = tokenizer, model, length

    @classmethod
    def load(cls, folder: Path, length: int, device: torch.device) -> "TextEncoder":
        """Read a folder in bf16, whatever the target's type; errors as of `encoder_network`."""
        network, tokenizer = encoder_network(folder), load_tokenizer(folder)
        with refusing(Flag("text_encoder_path")):
            network.fill(folder, torch.bfloat16, device)
        network.module.tie_weights()  # memory of its own was made for both uses of the embedding
        return cls(tokenizer, network.module, length)

    @torch.inference_mode()
    def __call__(self, text: str) -> Tensor:
        """Return the features (n, width), n <= length, of the cleaned text with its end token."""
        # All `length` tokens are read, with the padding masked, so that it rounds as the recipe.
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

    def cuts(self, text: str) -> bool:
        """Return whether a text has more tokens than are read, its end token included."""
        return len(self.tokenizer(clean_caption(text)).input_ids) > self.length


def encoder_network(folder: Path) -> Network:
    """Return the encoder of a folder, whose weights are not read yet."""
    from transformers import T5Config, T5EncoderModel

    with refusing(Flag("text_encoder_path")):
        path = folder / "config.json"
        config, shapes = read_object(path), folder_shapes(folder)
        if (kind := config.get("model_type")) != T5Config.model_type:
            raise mismatch(f"{path}: model_type", repr(kind), repr(T5Config.model_type))
        # before the network is built: many layers take minutes
        stated = config.get("num_layers", T5Config().num_layers)
        numbers = (_BLOCK.match(key) for key in shapes)
        held = max((int(match[1]) for match in numbers if match), default=-1) + 1
        if stated != held:
            raise ValueError(f"{path}: num_layers is {stated}, the weights hold {held}")
        with library_errors(path), torch.device("meta"):
            model = T5EncoderModel(T5Config.from_pretrained(folder))
            model.tie_weights()  # which transformers 5.0 does not do when it builds a network
    keys = {name: Slot(name) for name, _ in model.named_parameters()}
    # Files have the embedding under either name, or under both.
    one_tensor = ((r"^encoder\.embed_tokens\.", "shared."),)
    return Network(model, keys, ignored=("decoder.", "lm_head."), renames=one_tensor)


def load_tokenizer(folder: Path) -> "PreTrainedTokenizerBase":
    """Load a T5 tokenizer; a ValueError names what the folder lacks."""
    from transformers import AutoTokenizer

    if not any((folder / name).is_file() for name in T5_TOKENIZERS):
        raise ValueError(f"{_FLAG}: {folder} has no tokenizer: none of {', '.join(T5_TOKENIZERS)}")
    if not (folder / T5_TOKENIZERS[0]).is_file() and find_spec("sentencepiece") is None:
        advice = f"`pip install sentencepiece`, or add {T5_TOKENIZERS[0]} of google/flan-t5-xl"
        raise ValueError(f"{_FLAG}: {folder}/{T5_TOKENIZERS[1]} needs sentencepiece: {advice}")
    try:
        # split_special_tokens: the name of a control token in a caption is text
        tokenizer = AutoTokenizer.from_pretrained(folder, split_special_tokens=True)
    except Exception as error:  # tokenizers raises it bare, transformers whatever junk leads to
        why = damage(folder, error)
        raise ValueError(f"{_FLAG}: {folder} cannot be read as a tokenizer: {why}") from error
    if tokenizer.pad_token is None:
        raise ValueError(f"{_FLAG}: {folder} has a tokenizer without a padding token")
    return tokenizer
