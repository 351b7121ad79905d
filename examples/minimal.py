"""Exact speculative decoding of images in one file that needs torch and safetensors only.

    python examples/minimal.py "a large red circle on a plain blue background"

generates one image three times with the included model (minimal.png): by plain decoding, with
Jacobi drafts, and with draft trees. All three give the tokens of `main.py generate_images --dtype
fp64` for the same prompt and seed; they differ in how often the model runs.

Plain decoding takes argmax(log p(token | prefix) + noise[position]) as the token after a prefix.
The noise depends on seed and prompt only. One pass over a tree of drafts computes that token after
every node, and a draft is accepted exactly if it is the token computed after its parent. So drafts
decide how many tokens a pass yields, never which ones, however they were guessed: no acceptance
probability is needed. They come from the pass before (there is no draft model), whose noise helps.
"""

import argparse
import hashlib
import json
import os
import re
import struct
import time
import zlib
from itertools import pairwise
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # torch's threads would spin on busy cores
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

FOLDER = Path(__file__).resolve().parents[1] / "ckpts/tiny"
SIDE = 16  # an image is 16 x 16 tokens, row by row
TOKENS, CODES = SIDE * SIDE, 1024  # code: an image token's number; its id is first_code + code
LAYERS, HEADS, HEAD_DIM = 16, 4, 64
GUIDANCE = 3.0  # classifier-free guidance: how far logits move away from those without the prompt


# ---- The noise -----------------------------------------------------------------------------------


def hashed(*parts: object) -> int:
    """Return 63 bits that depend on every part."""
    digest = hashlib.blake2b("\0".join(map(str, parts)).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little") >> 1


def gumbel_noise(seed: int, prompt: str) -> Tensor:
    """Return the Gumbel noise (TOKENS, CODES) of an image: a number for each position and code.

    argmax(log p + noise) is a sample of p (the Gumbel-max trick), so this is all the randomness
    there is. The generator is SplitMix64 with position and code as its counter, in int64.
    """
    image = hashed("image", seed, prompt, 0, 0)  # occurrence and sample: the first
    key = hashed("stream", image, "target")
    counter = torch.arange(TOKENS)[:, None] * 2**32 + torch.arange(CODES)
    x = counter * (0x9E3779B97F4A7C15 - 2**64) + key
    for bits, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> bits & 2 ** (64 - bits) - 1)) * (factor - 2**64)  # the mask drops the sign
    x = x ^ (x >> 31 & 2**33 - 1)
    uniform = ((x >> 12 & 2**52 - 1).double() + 0.5) * 2.0**-52  # in (0, 1)
    return -torch.log(-torch.log(uniform))


# ---- The model: a transformer over text and image tokens -----------------------------------------


class Transformer:
    """Chameleon's transformer in fp64, where rounding cannot tip a choice."""

    def __init__(self) -> None:
        stored = load_file(FOLDER / "model.safetensors")
        self.weights = {name: tensor.double() for name, tensor in stored.items()}
        ids = json.loads((FOLDER / "config.json").read_text())["vocabulary_map"]
        self.first_code = ids["IMGIMGAZ"]  # the id of image token 0; the others follow
        self.head = self.weights["lm_head.weight"][self.first_code :][:CODES]

    def __call__(self, ids: Tensor, positions: Tensor, cache: "Cache", visible: Tensor) -> Tensor:
        """Return logits of the next image token after each of n tokens, (n, CODES).

        visible: (n, cached + n) whether a token attends to each cached and each new token.
        """
        w, shape = self.weights, (len(ids), HEADS, HEAD_DIM)
        x = w["model.embed_tokens.weight"][ids]  # (n, hidden)
        for layer in range(LAYERS):
            name = f"model.layers.{layer}."
            h = F.rms_norm(x, x.shape[-1:], w[name + "input_layernorm.weight"], 1e-5)
            q, k, v = ((h @ w[f"{name}self_attn.{n}_proj.weight"].T).view(shape) for n in "qkv")
            q = rotated(head_norm(q, w, name + "self_attn.q_norm."), positions)
            k = rotated(head_norm(k, w, name + "self_attn.k_norm."), positions)
            k, v = cache.extended(layer, k, v)
            q, k, v = (part.transpose(0, 1) for part in (q, k, v))  # (HEADS, tokens, HEAD_DIM)
            h = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
            x = x + h.transpose(0, 1).flatten(1) @ w[name + "self_attn.o_proj.weight"].T
            h = F.rms_norm(x, x.shape[-1:], w[name + "post_attention_layernorm.weight"], 1e-5)
            gate, up = (h @ w[f"{name}mlp.{part}_proj.weight"].T for part in ("gate", "up"))
            x = x + (F.silu(gate) * up) @ w[name + "mlp.down_proj.weight"].T
        return F.rms_norm(x, x.shape[-1:], w["model.norm.weight"], 1e-5) @ self.head.T


class Cache:
    """Keys and values of the tokens that a sequence has passed through the transformer."""

    def __init__(self) -> None:
        none = torch.empty(0, HEADS, HEAD_DIM, dtype=torch.float64)
        self.layers = [(none, none)] * LAYERS  # keys and values (tokens, HEADS, HEAD_DIM)

    def __len__(self) -> int:
        return len(self.layers[0][0])

    def extended(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append new tokens; return all keys and values of the layer."""
        old_keys, old_values = self.layers[layer]
        self.layers[layer] = torch.cat([old_keys, keys]), torch.cat([old_values, values])
        return self.layers[layer]

    def keep(self, slots: list[int]) -> None:
        """Keep these tokens only: rejected drafts leave the sequence."""
        self.layers = [(keys[slots], values[slots]) for keys, values in self.layers]


def head_norm(x: Tensor, weights: dict[str, Tensor], name: str) -> Tensor:
    """Normalise queries or keys (n, HEADS, HEAD_DIM); each head has a weight and a bias."""
    normed = F.layer_norm(x, x.shape[-1:], eps=1e-5)
    return normed * weights[name + "weight"] + weights[name + "bias"]


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Rotate pairs of channels by angles that grow with the position (RoFormer)."""
    turns = 10000.0 ** -(torch.arange(0, HEAD_DIM, 2, dtype=torch.float32) / HEAD_DIM)
    angles = torch.outer(positions.float(), turns)
    cos, sin = (part.double()[:, None].repeat(1, 1, 2) for part in (angles.cos(), angles.sin()))
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


# ---- Speculative decoding ------------------------------------------------------------------------


class Target:
    """The model on one prompt, with guidance: a sequence with the prompt and one without it."""

    def __init__(self, model: Transformer, prompt: str, seed: int):
        self.model, self.noise, self.passes = model, gumbel_noise(seed, prompt), 1
        ids = prompt_ids(prompt)
        self.begin, self.sequences = ids[-1], []
        for prefix in (ids[:-1], ids[:1]):  # before the last token, which begins the image
            n, cache = len(prefix), Cache()
            model(torch.tensor(prefix), torch.arange(n), cache, torch.ones(n, n).tril().bool())
            self.sequences.append((n, cache))

    def scores(self, tree: list[int], depths: Tensor, seen: Tensor, decided: int) -> Tensor:
        """Return log p + noise of the image token after every node of a tree, (nodes, CODES).

        The two forward passes count as one; the prompt's were the first. tree: (nodes,) ids; node
        0, the root, is the newest token, the others are drafts. depths: (nodes,). seen: (nodes,
        nodes) each node's ancestors and itself. decided: how many tokens the image has.
        """
        logits = []
        for prompt, cache in self.sequences:
            old = torch.ones(len(tree), len(cache), dtype=torch.bool)
            positions, visible = prompt + decided + depths, torch.cat([old, seen], 1)
            logits.append(self.model(torch.tensor(tree), positions, cache, visible))
        self.passes += 1
        conditional, unconditional = logits
        guided = unconditional + GUIDANCE * (conditional - unconditional)
        # drafts may reach beyond the image's end; what they say there is cut off
        return guided.log_softmax(-1) + self.noise[(decided + depths).clamp(max=TOKENS - 1)]


def generate(target: Target, levels: int, width: int) -> list[int]:
    """Return the tokens of an image, (TOKENS,).

    A round's tree has `levels` levels of `width` drafts; the first of a level has the next level as
    its children. Width 3: node 0 has 1, 2, 3; node 1 has 4, 5, 6; node 4 has 7, 8, 9. No levels:
    plain decoding. One draft a level, a chain: Jacobi decoding.
    """
    first_code = target.model.first_code
    image = [target.begin]  # ids: the prompt's last one, then the image's
    guesses: list[int] = []  # `width` for each of the next positions
    while len(image) <= TOKENS:
        # Draft: the newest token, then level by level the guesses, then neighbours.
        tree = [image[-1], *guesses]
        while len(tree) <= levels * width:
            tree += neighbours(image + tree[1::width], width)
        depths = torch.tensor([0, *(d for d in range(1, levels + 1) for _ in range(width))])
        first = [0, *range(1, len(tree), width)]  # the node of each level that has children
        seen = torch.eye(len(tree), dtype=torch.bool)  # a node sees itself
        for depth, node in enumerate(first):
            seen[depths > depth, node] = True  # and its ancestors, the first ones above it

        # Verify: the token that the target samples after every node, all in one forward pass.
        scores = target.scores(tree, depths, seen, len(image) - 1)
        choices = (scores.argmax(-1) + first_code).tolist()

        # Accept: a draft is right if it is the target's choice after its parent. Walk down to it.
        path = [0]  # the root and the accepted drafts
        for child in first[1:]:
            path += [n for n in range(child, child + width) if tree[n] == choices[path[-1]]]
            if path[-1] != child:
                break  # no draft is right, or one without children
        image += [choices[node] for node in path]  # the accepted drafts and one token more
        for _, cache in target.sequences:
            old = len(cache) - len(tree)
            cache.keep([*range(old), *(old + node for node in path)])  # not yet the newest token

        # Guess: rows below the path belong to positions after the newest token. They follow a wrong
        # draft, so their p is off, but those positions will be sampled with their noise, and codes
        # with large noise win under many p. So the best are good drafts.
        guesses = (scores[first[len(path) :]].topk(width).indices + first_code).flatten().tolist()
    return [id - first_code for id in image[1 : TOKENS + 1]]


def neighbours(before: list[int], width: int) -> list[int]:
    """Return `width` drafts for the position after these tokens: the one above, the one before."""
    # ids from 0 on fill up, and row 0 has none above: a draft that cannot be right does no harm
    return list(dict.fromkeys([before[-min(SIDE, len(before))], before[-1], *range(width)]))[:width]


# ---- Text in, pixels out -------------------------------------------------------------------------


def prompt_ids(prompt: str) -> list[int]:
    """Return the ids of `<s> text <reserved08706> <racm3:break>` by byte-pair encoding."""
    model = json.loads((FOLDER / "tokenizer/text_tokenizer.json").read_text())["model"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(model["merges"])}
    ids = []
    for word in re.findall(r" ?[^\W\d_]+| ?\d+| ?[^\s\w]+|\s+", prompt.lower()):
        parts = [*word.replace(" ", "\u0120")]
        while merges := [(ranks[p], i) for i, p in enumerate(pairwise(parts)) if p in ranks]:
            i = min(merges)[1]
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        ids += [model["vocab"][part] for part in parts]
    begin, turn, image = (model["vocab"][n] for n in ("<s>", "<reserved08706>", "<racm3:break>"))
    return [begin, *ids, turn, image]


def pixels(tokens: list[int]) -> Tensor:
    """Decode an image's tokens with the VQGAN to pixels, uint8 (128, 128, 3)."""
    stored = load_file(FOLDER / "tokenizer/vqgan.safetensors")
    w = {name: tensor.float() for name, tensor in stored.items()}

    def conv(name: str, x: Tensor) -> Tensor:
        kernel = w[name + ".weight"]
        return F.conv2d(x, kernel, w[name + ".bias"], padding=kernel.shape[-1] // 2)

    def norm(name: str, x: Tensor) -> Tensor:
        return F.group_norm(x, 8, w[name + ".weight"], w[name + ".bias"], 1e-6)

    def block(name: str, x: Tensor) -> Tensor:
        h = conv(name + ".conv1", F.silu(norm(name + ".norm1", x)))
        h = conv(name + ".conv2", F.silu(norm(name + ".norm2", h)))
        return h + (conv(name + ".nin_shortcut", x) if name + ".nin_shortcut.bias" in w else x)

    x = w["quantize.embedding.weight"][torch.tensor(tokens)].T.view(1, -1, SIDE, SIDE)
    x = conv("decoder.conv_in", conv("post_quant_conv", x))
    x = block("decoder.mid.block_1", x)
    h = norm("decoder.mid.attn_1.norm", x)
    q, k, v = (conv(f"decoder.mid.attn_1.{n}", h).flatten(2).transpose(1, 2) for n in "qkv")
    mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).view_as(x)
    x = block("decoder.mid.block_2", x + conv("decoder.mid.attn_1.proj_out", mixed))
    for level in (3, 2, 1, 0):
        x = block(f"decoder.up.{level}.block.1", block(f"decoder.up.{level}.block.0", x))
        if level:
            x = conv(f"decoder.up.{level}.upsample.conv", F.interpolate(x, scale_factor=2.0))
    x = conv("decoder.conv_out", F.silu(norm("decoder.norm_out", x)))[0]
    return ((x.clamp(-1, 1) + 1) * 127.5).to(torch.uint8).permute(1, 2, 0)


def write_png(path: str, image: Tensor) -> None:
    """Write an image, uint8 (height, width, 3), as a PNG file."""
    rows = b"".join(b"\0" + bytes(row.flatten().tolist()) for row in image)
    size = struct.pack(">IIBBBBB", image.shape[1], image.shape[0], 8, 2, 0, 0, 0)
    content = b"\x89PNG\r\n\x1a\n"
    for name, data in ((b"IHDR", size), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")):
        crc = struct.pack(">I", zlib.crc32(name + data))
        content += struct.pack(">I", len(data)) + name + data + crc
    Path(path).write_bytes(content)


@torch.inference_mode()
def main() -> None:
    """Generate an image three ways and compare their tokens."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("prompt")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    print("three times, by one prompt and seed; plain decoding takes longest", flush=True)
    model, images = Transformer(), {}
    for name, levels, width in (("plain", 0, 1), ("Jacobi", 16, 1), ("tree", 16, 3)):
        start, target = time.perf_counter(), Target(model, args.prompt, args.seed)
        images[name] = generate(target, levels, width)
        print(f"{name:6} {target.passes} passes, {time.perf_counter() - start:.1f} seconds")
        assert images[name] == images["plain"], "the same noise gives the same tokens"
    write_png("minimal.png", pixels(images["plain"]))


if __name__ == "__main__":
    main()
