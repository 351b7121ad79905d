"""LlamaGen and its drafter as defined, in fp64 from the public weights, row by row."""

import cmath
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

HEADS = 2


def weights(path: Path) -> dict[str, Tensor]:
    state = load_file(path) if path.suffix == ".safetensors" else torch.load(path)
    return {key: value.double() for key, value in state.items()}


def turns(slots: int, side: int, head_dim: int) -> Tensor:
    """Return the factors of the channel pairs, complex (slots + side^2, head_dim / 2)."""
    numbers = torch.zeros(slots + side * side, head_dim // 2, dtype=torch.complex128)
    for cell in range(side * side):
        for pair in range(head_dim // 2):
            along = cell // side if pair < head_dim // 4 else cell % side
            frequency = 10000.0 ** (-2 * (pair % (head_dim // 4)) / (head_dim / 2))
            numbers[slots + cell, pair] = cmath.exp(1j * along * frequency)
    return numbers


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def attention(w: dict[str, Tensor], prefix: str, x: Tensor, turn: Tensor, seen: Tensor) -> Tensor:
    """Return attention (n, hidden) of x (n, hidden); turn (n, head_dim / 2), seen (n, n) bool."""
    n, hidden = x.shape
    q, k, v = (
        (x @ w[f"{prefix}self_attn.{p}_proj.weight"].T).view(n, HEADS, -1).transpose(0, 1)
        for p in "qkv"
    )
    pairs = (part.unflatten(-1, (-1, 2)).contiguous() for part in (q, k))
    q, k = (torch.view_as_complex(pair) * turn for pair in pairs)
    scores = (q @ k.conj().transpose(1, 2)).real / v.shape[-1] ** 0.5  # (heads, n, n)
    mixed = scores.masked_fill(~seen, -torch.inf).softmax(-1) @ v
    return mixed.transpose(0, 1).reshape(n, hidden) @ w[f"{prefix}self_attn.o_proj.weight"].T


def mlp(w: dict[str, Tensor], prefix: str, x: Tensor) -> Tensor:
    gate, up = (x @ w[f"{prefix}mlp.{name}_proj.weight"].T for name in ("gate", "up"))
    return (F.silu(gate) * up) @ w[f"{prefix}mlp.down_proj.weight"].T


def target_features(
    w: dict[str, Tensor], condition: Tensor, padding: int, codes: list[int], side: int
) -> Tensor:
    """Return the features (slots + codes, hidden) of a row: a condition (slots, width), then codes.

    The first `padding` slots are empty. Padding sees the padding before it; nothing else does.
    """
    caption = F.gelu(condition @ w["model.cls_embedding.cap_proj.fc1.weight"].T, approximate="tanh")
    caption = caption @ w["model.cls_embedding.cap_proj.fc2.weight"].T
    x = torch.cat([caption, w["model.embed_tokens.weight"][codes]])
    n = len(x)
    turn = turns(len(condition), side, x.shape[1] // HEADS)[:n]
    seen = torch.ones(n, n, dtype=torch.bool).tril()
    seen[padding:, :padding] = False
    layer = 0
    while (prefix := f"model.layers.{layer}.") + "mlp.up_proj.weight" in w:
        before = norm(x, w[f"{prefix}input_layernorm.weight"], 1e-5)
        x = x + attention(w, prefix, before, turn, seen)
        x = x + mlp(w, prefix, norm(x, w[f"{prefix}post_attention_layernorm.weight"], 1e-5))
        layer += 1
    return norm(x, w["model.norm.weight"], 1e-5)


def drafted_features(
    w: dict[str, Tensor], features: Tensor, codes: list[int], slots: int, side: int
) -> Tensor:
    """Return the drafter's predictions (n, hidden) from the target's features (n, hidden).

    Slot i reads the feature of slot i and token i + 1, which is 0 in the prompt, and sees all slots
    up to itself.
    """
    tokens = [0] * (slots - 1) + codes
    x = torch.cat([w["embed_tokens.weight"][tokens], features], 1) @ w["fc.weight"].T + w["fc.bias"]
    n = len(x)
    turn = turns(slots - 1, side, x.shape[1] // HEADS)[:n]
    x = x + attention(w, "layers.0.", x, turn, torch.ones(n, n, dtype=torch.bool).tril())
    return x + mlp(w, "layers.0.", norm(x, w["layers.0.post_attention_layernorm.weight"], 1e-6))
