"""Plain autoregressive decoding over transformers' ChameleonModel and its cache: oracle of tests, rival in speed."""

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
    """The codes (tokens,) of one image, both guidance rows in one batch, with the same noise as our engine.

    Everything that does not depend on the tokens (mask, positions, noise) is made before the loop.

    Args:
        model: transformers' network with the target's weights, dtype and device.
        target: says the prompt's rows and scores features, image codes only.
        job: prompt and seed.
        law: the sampling law.
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
    """Additive mask (rows, 1, slots, slots), None where a row needs no padding, and positions (rows, slots)."""
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
    """The target's positional noise (tokens, vocab), in the law's precision; zeros at temperature 0."""
    tokens, size = target.grid.tokens, target.vocab.size
    dtype = torch.float64 if target.dtype == torch.float64 else torch.float32
    if distribution.greedy:
        return torch.zeros(tokens, 1, dtype=dtype, device=target.device)
    return gumbel(seed, "target", torch.arange(tokens, device=target.device), size).to(dtype)
