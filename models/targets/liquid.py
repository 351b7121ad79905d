"""Liquid (arXiv 2412.04332): Gemma with the codes of Chameleon's VQGAN behind its own ids.

A sequence is `<bos>text Generate an image based on this description.<boi>`, then 32 x 32 tokens
without row ends. The unconditional row is `<bos><unconditional><boi>`. The tokenizer has no tokens
for the image codes: their ids begin where its own end.

Gemma's norms multiply by 1 + weight, its embeddings are scaled by sqrt(hidden), and its head is the
unscaled embedding. All three are entered into the weights once, after reading.
"""

from dataclasses import replace

import torch
from torch import nn

from models.base import ImageVocab, TransformerSpec
from models.codecs.codec import META
from models.files.entries import filled, require_values
from models.files.network import KeyMap
from models.files.recognition import require_model
from models.files.tokenizer_file import row_ids
from models.targets.chameleon import WithVqgan
from models.targets.llama import HEAD, llama_spec
from models.targets.prompts import Prompts
from models.transformer import Transformer

BOS, PAD, BEGIN_IMAGE, UNCONDITIONAL = "<bos>", "<pad>", "<boi>", "<unconditional>"
# Gemma's tokenizer has tokens for these words of HTML
TAGS = (
    "</?(table|caption|thead|tbody|tfoot|tr|th|td|h[1-6]|blockquote|strong|em|[bius]|sub|sup|code)>"
)
REQUEST = " Generate an image based on this description."
# transformers' GemmaConfig, with Liquid's ids; a config.json need not repeat them
_DEFAULTS = {
    "vocab_size": 256_000 + 8192,
    "hidden_size": 3072,
    "intermediate_size": 24576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
}
# Length of the authors' training sequences. Caches have room for all positions, and Gemma's 8,192
# would take four times the memory.
_POSITIONS = 2048
# "gelu" also means the tanh formula: Gemma's first config.json was wrong, and transformers says so
_BUILT = {
    "hidden_act": ("gelu", "gelu_pytorch_tanh"),
    "hidden_activation": ("gelu_pytorch_tanh",),
    "tie_word_embeddings": (True,),
    "use_bidirectional_attention": (False,),
}


class LiquidPrompts(Prompts):
    """Prompts of Liquid: a request in words, then the begin of the image."""

    pad = PAD

    def first_code(self) -> int:
        return len(self.words)

    def ids(self, text: str) -> list[int]:
        words = self.words
        return row_ids(words.tokenizer, words[BOS], text + REQUEST, words[BEGIN_IMAGE])

    def empty(self, row: list[int]) -> list[int]:
        return [self.words[name] for name in (BOS, UNCONDITIONAL, BEGIN_IMAGE)]


class Liquid(WithVqgan):
    """Liquid, a Gemma with the codes of Chameleon's VQGAN."""

    name = "liquid"
    prompts = LiquidPrompts
    frame = (BOS, PAD, BEGIN_IMAGE, UNCONDITIONAL)
    tags = TAGS
    fit = META
    ignored = (HEAD,)

    def entries(self, config: dict) -> dict:
        require_model(config, self.name)
        entries = filled(config, _DEFAULTS)
        require_values(entries, _BUILT)
        return {name: entries[name] for name in entries if name not in ("head_dim", *_BUILT)}

    def spec(self, config: dict) -> TransformerSpec:
        width = filled(config, _DEFAULTS)["head_dim"]
        return replace(llama_spec(self.entries(config), width, _POSITIONS), gelu=True)

    def keys(self, config: dict, spec: TransformerSpec, vocab: ImageVocab) -> KeyMap:
        keys = super().keys(config, spec, vocab)
        del keys[HEAD]  # `finish` fills it; .bin files repeat the embedding under its key
        return keys

    @torch.no_grad()
    def finish(self, network: nn.Module, prompts: Prompts) -> Transformer:
        """Fill the head and enter Gemma's constants into norms and embeddings.

        The embedding is rounded as Gemma rounds its product with the scale. In bf16, 1 + weight of
        a norm is rounded too, which Gemma keeps in fp32.
        """
        network = super().finish(network, prompts)
        embedding, first = network.embedding.weight, prompts.vocab.first_id
        # Before the embedding gets its scale, which the head does not have.
        network.head.weight.copy_(embedding[first : first + prompts.vocab.size])
        embedding.mul_(torch.tensor(network.spec.hidden**0.5, dtype=embedding.dtype))
        for module in network.modules():
            if isinstance(module, nn.RMSNorm):
                module.weight.add_(1.0)
        return network
