"""The base of targets whose decoder is a plain Llama: Janus-Pro and Emu3."""

from typing import Protocol

import torch

from models.base import ImageVocab, PromptRows, TransformerSpec
from models.codecs.vqgan import ImageTokenizer
from models.targets.llama_spec import llama_drafter_spec
from models.targets.transformer_target import TransformerTarget
from models.transformer import Transformer


class Prompts(Protocol):
    """Makes the rows of a prompt."""

    def rows(self, text: str, guidance: int, device: torch.device) -> PromptRows:
        """Return the conditional row and, with guidance 2, the unconditional one."""


class LlamaTarget(TransformerTarget):
    """A Llama decoder with a codec; what makes its prompts is a part of it."""

    def __init__(
        self,
        transformer: Transformer,
        prompts: Prompts,
        images: ImageTokenizer,
        vocab: ImageVocab,
    ):
        self.transformer, self.prompts, self.images = transformer, prompts, images
        self.spec, self.vocab = transformer.spec, vocab
        weight = transformer.norm.weight
        self.dtype, self.device = weight.dtype, weight.device

    def prompt(self, text: str, guidance: int) -> PromptRows:
        return self.prompts.rows(text, guidance, self.device)

    def drafter_spec(self, config: dict) -> TransformerSpec:
        return llama_drafter_spec(config, self.spec)
