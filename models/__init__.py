"""Target models: the transformer, image codecs, checkpoint files, and one module per family."""

import logging

# Warnings to silence, by logger: transformers and diffusers import torchao where it is installed,
# and these follow. None of them concerns what is done here: no file of torchao's tensors is read.
HARMLESS = {
    "torch.utils._pytree": "is an Enum subclass",
    "diffusers.quantizers.torchao.torchao_quantizer": "Unable to import `torchao` Tensor objects",
}


def _silence(name: str, text: str) -> None:
    logging.getLogger(name).addFilter(lambda record: text not in record.getMessage())


for name, text in HARMLESS.items():  # before diffusers or transformers is imported
    _silence(name, text)
