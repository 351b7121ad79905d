"""Plain autoregressive decoding over transformers' ChameleonModel and its cache.

Tests take it as the reference for tokens, compare_transformers as the reference for speed.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, StaticCache

from decoding.flight import Job
from decoding.noise import gumbel
from decoding.sampling import SamplingDistribution, choose
from models.base import PromptRows, TargetModel

CACHES = ("dynamic", "static", "none")


@torch.inference_mode()
def transformers_decode(
    model: Callable[..., Any],
    target: TargetModel,
    job: Job,
    distribution: SamplingDistribution,
    cache: str = "dynamic",
) -> Tensor:
    """Return the codes (tokens,) of one image, made with the same noise as in our engine.

    Both guidance rows run in one batch. What does not depend on the tokens (mask, positions, noise)
    is computed before the loop.

    Args:
        model: transformers' network with the target's weights, dtype and device; or the same,
            compiled, for one token at a time.
        target: gives the prompt's rows, and the logits of image codes for features.
        job: prompt and seed.
        distribution: the sampling distribution.
        cache: transformers' cache that grows; the one that has its full length from the start; or
            none, so that every step reads the whole sequence again.
    """
    prompt, tokens = target.prompt(job.prompt, distribution.guidance), target.grid.tokens
    length = prompt.ids.shape[1]
    slots = length + tokens
    mask, positions = _mask_and_positions(prompt, slots, target.dtype)
    noise = _noise(job.seed, target, distribution)  # (tokens, vocab)
    ids = torch.cat([prompt.ids, prompt.ids.new_zeros(distribution.guidance, tokens)], 1)
    network = getattr(model, "_orig_mod", model)  # below what compiles it
    kept = {
        "dynamic": lambda: DynamicCache(config=network.config),
        "static": lambda: StaticCache(config=network.config, max_cache_len=slots),
        "none": lambda: None,
    }[cache]()
    for i in range(tokens):
        stop = length + i
        start = stop - 1 if kept is not None and i else 0
        run = model if stop - start == 1 else network
        features = run(
            input_ids=ids[:, start:stop],
            position_ids=positions[:, start:stop],
            attention_mask=mask[:, :, start:stop, : slots if cache == "static" else stop],
            past_key_values=kept,
            use_cache=kept is not None,
        ).last_hidden_state
        code = choose(distribution(target.score(features[:, -1:]))[0, 0], noise[i])
        ids[:, stop] = code + target.vocab.first_id
    return ids[0, length:] - target.vocab.first_id


def _mask_and_positions(
    prompt: PromptRows, slots: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """Return the additive mask (rows, 1, slots, slots) and the positions (rows, slots)."""
    slot = torch.arange(slots, device=prompt.ids.device)
    positions = (slot - prompt.starts[:, None]).clamp(min=0)
    after = slot >= prompt.starts[:, None, None]
    seen = (slot[:, None] >= slot) & after | (slot[:, None] == slot)
    mask = torch.zeros(seen.shape, dtype=dtype, device=slot.device)
    return mask.masked_fill_(~seen, torch.finfo(dtype).min)[:, None], positions


def _noise(seed: int, target: TargetModel, distribution: SamplingDistribution) -> Tensor:
    """Return the target's noise (tokens, vocab), in the distribution's precision; zeros at
    T = 0.
    """
    tokens, size = target.grid.tokens, target.vocab.size
    dtype = torch.float64 if target.dtype == torch.float64 else torch.float32
    if distribution.greedy:
        return torch.zeros(tokens, 1, dtype=dtype, device=target.device)
    return gumbel(seed, "target", torch.arange(tokens, device=target.device), size).to(dtype)
