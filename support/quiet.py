"""Warnings of libraries about one another, which nobody here can act on."""

import logging

# By logger: transformers and diffusers import torchao where it is installed, and these follow. None
# of them concerns what is done here: no file of torchao's tensors is read.
HARMLESS = {
    "torch.utils._pytree": "is an Enum subclass",
    "diffusers.quantizers.torchao.torchao_quantizer": "Unable to import `torchao` Tensor objects",
}


class Without(logging.Filter):
    """Lets records pass that do not hold these words."""

    def __init__(self, words: str):
        super().__init__()
        self.words = words

    def filter(self, record: logging.LogRecord) -> bool:
        return self.words not in record.getMessage()


def silence() -> None:
    """Keep the harmless warnings off the screen, from now on."""
    for name, words in HARMLESS.items():
        logging.getLogger(name).addFilter(Without(words))
