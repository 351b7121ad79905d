"""The one decoder-only transformer of all targets and drafters.

Pre-norm (or Swin-norm) blocks with RMSNorm, rotary attention with optional query/key norms, and
SwiGLU (Gemma: GEGLU); Image GPT's have LayerNorm, learned positions and GELU. Keys and values live
in a cache that the caller passes in; without one the forward pass is causal over its own tokens
(training).
"""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.base import Context, Layers, TransformerSpec
from models.cpu.linear import Linear
from models.rotary import Rotary, RotaryGrid, RotaryGrids, Unrotated, rotate, rotate_pairs
from support.kernels import NO_KERNELS

Rotation = tuple[Tensor, Tensor]  # cosines and signed sines (rows, n, 1, head_dim)


class Embedding(nn.Embedding):
    """nn.Embedding, without values to begin with on the meta device.

    There are none to draw, but torch would load its whole compiler to draw them: seconds of every
    command, since networks are built on the meta device before files are read.
    """

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()


class HeadNorm(nn.Module):
    """LayerNorm over head_dim, with its own weight and bias for every query and key head."""

    def __init__(self, heads: int, head_dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, head_dim))
        self.bias = nn.Parameter(torch.zeros(heads, head_dim))
        # Chameleon's code has this one, whatever rms_norm_eps its config.json gives.
        self.eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:  # (rows, n, heads, head_dim)
        return torch.addcmul(self.bias, F.layer_norm(x, x.shape[-1:], eps=self.eps), self.weight)


class HeadRMSNorm(nn.Module):
    """Root mean square norm over head_dim; queries have one weight, keys another.

    Weights are repeated for every head, so that one product serves queries and keys.
    """

    def __init__(self, heads: int, head_dim: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, head_dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:  # (rows, n, heads, head_dim)
        return F.rms_norm(x, x.shape[-1:], eps=self.eps) * self.weight


def norm_of(spec: TransformerSpec) -> nn.Module:
    """Return a norm over hidden states (rows, n, hidden)."""
    return (nn.LayerNorm if spec.gpt2 else nn.RMSNorm)(spec.hidden, spec.norm_eps)


class Attention(nn.Module):
    """Self-attention of a layer; the cache holds keys and values."""

    def __init__(self, spec: TransformerSpec, layer: int):
        super().__init__()
        self.layer, self.head_dim = layer, spec.head_dim
        self.heads, self.kv_heads = spec.heads, spec.kv_heads
        self.qkv = Linear(
            spec.hidden, (spec.heads + 2 * spec.kv_heads) * spec.head_dim, spec.qkv_bias
        )
        self.out = Linear(spec.heads * spec.head_dim, spec.hidden, bias=spec.gpt2)
        self.qk_norm: HeadNorm | HeadRMSNorm | None = None
        if spec.qk_rms:
            self.qk_norm = HeadRMSNorm(self.heads + self.kv_heads, self.head_dim, spec.norm_eps)
        elif spec.qk_norm:
            self.qk_norm = HeadNorm(self.heads + self.kv_heads, self.head_dim)
        # LlamaGen rotates neighbouring channels, all other families the two halves of a head.
        self.rotate = rotate if spec.image_rope is None else rotate_pairs

    def run(self, ops: "BlockOps", x: Tensor, rotation: Rotation, context: Context) -> Tensor:
        """Return the outputs (rows, n, hidden) of new tokens x."""
        qkv = self.qkv(x)
        y = ops.attend(self, qkv.unflatten(2, (-1, self.head_dim)), rotation, context)
        return self.out(y.to(qkv.dtype).transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """A gated MLP; GPT-2's has no gate."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.gelu, self.plain = spec.gelu, spec.gpt2
        width = spec.intermediate if self.plain else 2 * spec.intermediate
        self.gate_up = Linear(spec.hidden, width, bias=self.plain)
        self.down = Linear(spec.intermediate, spec.hidden, bias=self.plain)

    def run(self, ops: "BlockOps", x: Tensor) -> Tensor:
        return self.down(ops.gate(self, self.gate_up(x)))


class BlockOps:
    """The operations of a block between its matrix products, by torch.

    `models.cuda.ops` has the same ones as kernels of Triton, one launch each.
    """

    def norm(self, norm: nn.Module, x: Tensor) -> Tensor:
        """Return hidden states (rows, n, hidden), normed."""
        return norm(x)

    def add_norm(self, norm: nn.Module, x: Tensor, y: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the sum of hidden states, and the normed sum; without y those of x."""
        x = x if y is None else x + y
        return x, self.norm(norm, x)

    def gate(self, mlp: MLP, gate_up: Tensor) -> Tensor:
        """Return the activation of the first half (rows, n, width) times the second."""
        if mlp.plain:
            return F.gelu(gate_up)
        gate, up = gate_up.chunk(2, -1)
        return (F.gelu(gate, approximate="tanh") if mlp.gelu else F.silu(gate)) * up

    def attend(
        self, attention: Attention, qkv: Tensor, rotation: Rotation, context: Context
    ) -> Tensor:
        """Norm and rotate heads, write the cache, return attention (rows, heads, n, head_dim).

        Queries attend to the cache with the new tokens in it, or without a cache to their own
        tokens. qkv: queries, keys and values side by side (rows, n, heads + 2 kv_heads, head_dim).
        """
        # Queries and keys stay together: one norm and one rotation for both.
        qk, v = qkv.split([attention.heads + attention.kv_heads, attention.kv_heads], 2)
        if attention.qk_norm is not None:
            qk = attention.qk_norm(qk)
        qk = attention.rotate(qk, *rotation).transpose(1, 2)
        q, k = qk.split([attention.heads, attention.kv_heads], 1)
        v = v.transpose(1, 2)
        if context.cache is not None:
            k, v = context.cache.write(attention.layer, k, v)
        # On CPUs a bf16 model has its cache in fp32 (`attention_dtype` of decoding/cache.py).
        q, shared = q.to(k.dtype), attention.heads != attention.kv_heads
        causal = context.cache is None and context.mask is None
        if causal or not shared:
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=context.mask, is_causal=causal, enable_gqa=shared
            )
        # Heads that share keys and values are read as more queries: torch's fast kernels on GPUs
        # refuse such groups with a mask, and for one token on a CPU this is 3 times as fast.
        more = q.reshape(len(q), attention.kv_heads, -1, attention.head_dim)
        return F.scaled_dot_product_attention(more, k, v, attn_mask=context.mask).view(q.shape)


BY_TORCH = BlockOps()


class Block(nn.Module):
    """A layer of the transformer: attention, then the MLP."""

    def __init__(self, spec: TransformerSpec, layer: int):
        super().__init__()
        self.attention, self.mlp, self.swin = Attention(spec, layer), MLP(spec), spec.swin_norm
        has_norm = spec.first_norm or layer > 0
        self.attention_norm = norm_of(spec) if has_norm else nn.Identity()
        self.mlp_norm = norm_of(spec)
        self.sandwich, self.adds_to_normed = spec.sandwich_norm, spec.gpt2
        if self.sandwich:
            self.attention_after, self.mlp_after = norm_of(spec), norm_of(spec)
        self.ops = BY_TORCH

    def forward(
        self, x: Tensor, y: Tensor | None, rotation: Rotation, context: Context
    ) -> tuple[Tensor, Tensor]:
        """Run the block on hidden states x + y (rows, n, hidden); without y on x.

        A Llama block reads x = x + attention(norm(x)), then x = x + mlp(norm(x)). Here the last sum
        is left to the reader of the result, so two summands are returned: the next block's norm
        adds them in the same kernel, which saves a GPU 14 to 20 % of a pass over few tokens.
        """
        ops, attention, mlp = self.ops, self.attention, self.mlp
        if self.swin:
            x = x if y is None else x + y
            y = ops.norm(self.attention_norm, attention.run(ops, x, rotation, context))
            x = x + y
            return x, ops.norm(self.mlp_norm, mlp.run(ops, x))
        x, normed = ops.add_norm(self.attention_norm, x, y)
        x = normed if self.adds_to_normed else x
        y = attention.run(ops, normed, rotation, context)
        if self.sandwich:
            y = ops.norm(self.attention_after, y)
        x, normed = ops.add_norm(self.mlp_norm, x, y)
        y = mlp.run(ops, normed)
        if self.sandwich:
            y = ops.norm(self.mlp_after, y)
        return x, y


def rotary_of(spec: TransformerSpec) -> Rotary:
    """Return how queries and keys are rotated."""
    if spec.grid_rope is not None:
        return RotaryGrids(spec, spec.grid_rope)
    if spec.image_rope is not None:
        return RotaryGrid(spec, spec.image_rope)
    return Unrotated(spec) if spec.gpt2 else Rotary(spec)


class Blocks(nn.Module):
    """The stack of blocks, shared by targets and drafters."""

    def __init__(self, spec: TransformerSpec):
        super().__init__()
        self.spec = spec
        self.rotary = rotary_of(spec)
        self.blocks = nn.ModuleList(Block(spec, layer) for layer in range(spec.layers))
        # How layers run is chosen here: by torch or by `models.cpu.blocks`; how the steps between
        # their products do, in `Block.ops`.
        self.run: Callable[..., Tensor] = run_by_torch

    @property
    def layers(self) -> list[Block]:
        """The blocks in order."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def forward(
        self,
        x: Tensor,
        context: Context,
        layers: Layers = (),
        norm: nn.Module | None = None,
    ) -> Tensor:
        """Embeddings (rows, n, hidden) -> features (rows, n, hidden).

        With `layers` the states after these layers follow: (rows, n, 1 + layers, hidden).
        With `norm` everything that is returned has passed it.
        """
        return self.run(self, x, context, layers, norm)


def run_by_torch(
    blocks: Blocks,
    x: Tensor,
    context: Context,
    layers: Layers = (),
    norm: nn.Module | None = None,
) -> Tensor:
    """Run one block after the other; arguments and result as `Blocks.forward`."""
    rotation, mask = blocks.rotary(context.positions, x.dtype), context.mask
    if mask is not None and mask.shape[2] > 1:  # heads that share keys are more queries
        groups = blocks.spec.heads // blocks.spec.kv_heads
        context = replace(context, mask=mask.repeat(1, 1, groups, 1) if groups > 1 else mask)
    states: list[Tensor] = []
    y: Tensor | None = None
    for number, block in enumerate(blocks.blocks, 1):
        x, y = block(x, y, rotation, context)
        if number in layers:
            states.append(x + y)
    if norm is not None and not layers:
        return block.ops.add_norm(norm, x, y)[1]
    x = x if y is None else x + y
    if layers:
        # Layers spread over GPUs leave their states on several of them.
        x = torch.stack([x, *(state.to(x.device) for state in states)], 2)
    return x if norm is None else block.ops.norm(norm, x)


class Transformer(nn.Module):
    """Token embedding, blocks, final norm and the head over the ids that are scored."""

    def __init__(self, spec: TransformerSpec, scored: int):
        super().__init__()
        self.embedding = Embedding(spec.vocab, spec.hidden)
        self.positions = Embedding(spec.max_positions, spec.hidden) if spec.gpt2 else None
        self.blocks = Blocks(spec)
        self.norm = norm_of(spec)
        self.head: nn.Module = Linear(spec.hidden, scored, bias=False)
        self.kernels = NO_KERNELS  # of the steps from logits to tokens

    @property
    def spec(self) -> TransformerSpec:
        return self.blocks.spec

    def forward(self, ids: Tensor, context: Context, layers: Layers = ()) -> Tensor:
        """Token ids (rows, n) -> features after the final norm (rows, n, hidden).

        layers: whose hidden states follow, as `TargetModel.features` says.
        """
        x = self.embedding(ids)
        if self.positions is not None:
            x = x + self.positions(context.positions)
        return self.read(x, context, layers)

    def read(self, embeddings: Tensor, context: Context, layers: Layers = ()) -> Tensor:
        """Embeddings (rows, n, hidden) -> what `forward` returns."""
        # (rows, n, 1 + layers, hidden) becomes one row a token; nothing changes without layers.
        return self.blocks(embeddings, context, layers=layers, norm=self.norm).flatten(2)

    def score(self, features: Tensor) -> Tensor:
        """Features (rows, n, hidden) -> logits over the scored ids (rows, n, scored).

        Hidden states that stand behind the features are left out.
        """
        return self.head(features[..., : self.spec.hidden])
