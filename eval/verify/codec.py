"""Check of the image tokenizer: known pictures become codes and come back."""

import torch
from torch import Tensor

from eval.verify.lines import Line, judged
from eval.verify.subject import Subject

LEAST_PSNR = 18.0  # dB; public codecs reach 20 and more on photographs, ckpts/tiny's 26 on scenes
LEAST_GAIN = 3.0  # dB above pictures of one colour


def check_codec(subject: Subject) -> Line:
    """Check the peak signal-to-noise ratio of the known pictures after the codec."""
    pictures = subject.pictures.double()
    back = subject.target.to_image(subject.codes).double()
    flat = pictures.mean((1, 2), keepdim=True)
    found, plain = (psnr(pictures, other).mean().item() for other in (back, flat))
    least = max(LEAST_PSNR, plain + LEAST_GAIN)
    height, width = pictures.shape[1:3]
    return judged(
        "codec",
        found >= least,
        f"{len(pictures)} drawn pictures of {width} x {height} come back with {found:.1f} dB "
        f"(PSNR; at least {least:.1f})",
        "the image tokenizer's encoder, codebook and decoder are not of one model, or its "
        "vqgan.yaml is another's",
        psnr=found,
        one_colour=plain,
    )


def psnr(pictures: Tensor, others: Tensor) -> Tensor:
    """Return the peak signal-to-noise ratios (images,) in dB of pictures up to 255."""
    error = (pictures - others).square().flatten(1).mean(1)
    return 10 * torch.log10(255**2 / error)
