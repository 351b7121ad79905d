"""Plain autoregressive decoding over transformers' ChameleonModel and its cache.

Tests take it as the reference for tokens, compare_transformers as the reference for speed.
"""

import torch
from torch import Tensor
from transformers import ChameleonModel, DynamicCache

from decoding.flight import Job
from decoding.noise import gumbel
from decoding.sampling import SamplingDistribution, choose
from models.base import PromptRows, TargetModel


@torch.inference_mode()
def transformers_decode(
    model: ChameleonModel,
    target: TargetModel,
    job: Job,
    distribution: SamplingDistribution,
    use_cache: bool = True,
) -> Tensor:
    """Return the codes (tokens,) of one image, made with the same noise as in our engine.

    Both guidance rows run in one batch. What does not depend on the tokens (mask, positions, noise)
    is computed before the loop.

    Args:
        model: transformers' network with the target's weights, dtype and device.
        target: gives the prompt's rows, and the logits of image codes for features.
        job: prompt and seed.
        distribution: the sampling distribution.
        use_cache: without it every step reads the whole sequence again.
    """
    prompt, tokens = target.prompt(job.prompt, distribution.guidance), target.grid.tokens
    length = prompt.ids.shape[1]
    mask, positions = _mask_and_positions(prompt, length + tokens, model.dtype)
    noise = _noise(job.seed, target, distribution)  # (tokens, vocab)
    ids = torch.cat([prompt.ids, prompt.ids.new_zeros(distribution.guidance, tokens)], 1)
    cache = DynamicCache(config=model.config) if use_cache else None
    for i in range(tokens):
        stop = length + i
        start = stop - 1 if use_cache and i else 0
        features = model(
            input_ids=ids[:, start:stop],
            position_ids=positions[:, start:stop],
            attention_mask=None if mask is None else mask[:, :, start:stop, :stop],
            past_key_values=cache,
            use_cache=use_cache,
        ).last_hidden_state
        ids[:, stop] = (
            choose(distribution(target.score(features[:, -1:]))[0, 0], noise[i])
            + target.vocab.first_id
        )
    return ids[0, length:] - target.vocab.first_id


def _mask_and_positions(
    prompt: PromptRows, slots: int, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor]:
    """Return the additive mask (rows, 1, slots, slots) and the positions (rows, slots).

    The mask is None if no row is padded.
    """
    slot = torch.arange(slots, device=prompt.ids.device)
    positions = (slot - prompt.starts[:, None]).clamp(min=0)
    if not prompt.starts.any():
        return None, positions
    seen = (slot[:, None] >= slot) & (slot >= prompt.starts[:, None, None]) | (
        slot[:, None] == slot
    )
    hidden = torch.finfo(dtype).min
    return torch.zeros(seen.shape, dtype=dtype, device=slot.device).masked_fill_(~seen, hidden)[
        :, None
    ], positions


def _noise(seed: int, target: TargetModel, distribution: SamplingDistribution) -> Tensor:
    """Return the target's noise (tokens, vocab), in the distribution's precision; zeros at
    T = 0.
    """
    tokens, size = target.grid.tokens, target.vocab.size
    dtype = torch.float64 if target.dtype == torch.float64 else torch.float32
    if distribution.greedy:
        return torch.zeros(tokens, 1, dtype=dtype, device=target.device)
    return gumbel(seed, "target", torch.arange(tokens, device=target.device), size).to(dtype)
