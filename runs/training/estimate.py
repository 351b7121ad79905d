"""What a training needs: memory and operations by formula, time from a measured speed.

The formulas count tensors. What the allocator holds in reserve and what libraries take is more.
"""

from torch import nn

from configs.targets import TARGETS
from configs.training import TrainSettings
from drafters.loading import drafter_network
from drafters.training.heads import head_config
from drafters.training.rounds import SHAPE
from drafters.training.shards import Tokens, grid_of
from drafters.training.windows import PASSES, ROUNDS
from models.base import TransformerSpec
from models.files.folders import checkpoint_folder
from models.registry import FAMILIES
from models.transformer import Transformer
from runs.session import DTYPES
from support.json_files import read_object

_TOKENS = 3  # accepted length assumed of the rounds that a block head draws
_OPTIMIZER = {"adamw": 8, "muon": 4}  # bytes of the optimiser's state per weight, in fp32


def slots_of(settings: TrainSettings, tokens: Tokens, spec: TransformerSpec) -> tuple[int, int]:
    """Return the slots of the longest prompt, and of an image.

    A prompt of text has at most one token per byte of its caption; those around it, a few, are not
    counted.
    """
    longest = max(len(caption.encode()) for caption in tokens.captions)
    prompt = spec.image_rope.condition if spec.image_rope else longest
    grid, ends = grid_of(tokens.about), TARGETS[settings.model].sizes is not None
    return prompt, grid.tokens + grid.rows * ends


def layer_floats(spec: TransformerSpec) -> int:
    """Return how many numbers per token a layer keeps for its gradients.

    These are the inputs and outputs of two norms; queries, keys and values before the norm, after
    it and after rotation; what attention gives; gate, up, their activation and product.
    """
    heads = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
    return 4 * spec.hidden + 3 * heads + 2 * spec.hidden + 4 * spec.intermediate


def head_activations(spec: TransformerSpec, rows: int, slots: tuple[int, int], depths: int) -> int:
    """Return the bytes that the unrolled drafter keeps for its gradients, in fp32.

    Every depth has the image's slots, the first one the prompt's, too. A depth's attention has a
    copy of the keys and values of all depths so far.
    """
    prompt, image = slots
    tokens = prompt + image * depths
    copies = sum(prompt + image * depth for depth in range(2, depths + 1))
    kept = tokens * (layer_floats(spec) * spec.layers + 3 * spec.hidden)
    kept += copies * spec.layers * 2 * spec.kv_heads * spec.head_dim
    return 4 * rows * kept


def window_activations(spec: TransformerSpec, rows: int, slots: tuple[int, int]) -> int:
    """Return the bytes that a block head keeps for its gradients, in fp32.

    It reads the sequence, and two slots per step of every round; each round's attention has a copy
    of the sequence's keys and values.
    """
    image, window = sum(slots), 2 * SHAPE.reach
    kept = (image + ROUNDS * window) * (layer_floats(spec) * spec.layers + 3 * spec.hidden)
    kept += ROUNDS * (image + window) * spec.layers * 2 * spec.kv_heads * spec.head_dim
    return 4 * rows * kept


def distribution_activations(
    codes: int, rows: int, guidance: int, image: int, depths: int, agreement: bool
) -> int:
    """Return the bytes of the distributions in fp32.

    The target's and one per depth are kept, and three copies of every row's logits pass by. The
    agreement loss keeps per depth the order, both distributions in it and their sums.
    """
    kept = depths + 1 + 6 * depths * agreement
    return 4 * image * codes * (rows // guidance * kept + 3 * rows)


def target_activations(
    spec: TransformerSpec, rows: int, slots: tuple[int, int], itemsize: int
) -> int:
    """Return the bytes of the target's pass, without gradients: widest layer, features, masks."""
    n = sum(slots)
    heads = (spec.heads + 2 * spec.kv_heads) * spec.head_dim
    widest = 3 * spec.hidden + heads + 3 * spec.intermediate
    return rows * n * (widest + n) * itemsize


def memory(settings: TrainSettings, tokens: Tokens) -> dict[str, int]:
    """Return the bytes on each process's device, by what needs them.

    A pass has batch_size / accumulate images in one process.
    """
    network, head, spec = _networks(settings)
    itemsize = DTYPES[settings.dtype].itemsize
    slots, codes = slots_of(settings, tokens, network.spec), tokens.about["vocab"]
    rows = settings.batch_size // settings.accumulate * settings.rows
    named = head.named_parameters()
    trained = sum(p.numel() for name, p in named if not name.startswith("embedding."))
    depths, scored = settings.depths, slots[1]
    if settings.drafter == "block":
        depths, scored = 1, ROUNDS * SHAPE.reach
        drafts = window_activations(spec, rows, slots)
    else:
        drafts = head_activations(spec, rows, slots, depths)
    return {
        "target weights": sum(p.numel() for p in network.parameters()) * itemsize,
        "drafter weights and gradients": trained * 8,  # two numbers in fp32
        "optimiser": trained * _OPTIMIZER[settings.optimizer],
        "averaged weights": trained * 4 if settings.ema else 0,
        "drafter embeddings": network.spec.vocab * network.spec.hidden * itemsize,
        "target activations": target_activations(network.spec, rows, slots, itemsize),
        "drafter activations": drafts,
        "distributions": distribution_activations(
            codes, rows, settings.rows, scored, depths, settings.agreement_weight > 0
        ),
    }


def work(settings: TrainSettings, tokens: Tokens) -> dict[str, int]:
    """Return the operations of an update, by what does them: two per multiplication with a weight.

    Attention and the optimiser are not counted. A backward pass counts as two forward passes; that
    of a distribution, which has no weights to learn, as one. A block head's images are drawn, at an
    assumed number of tokens a round, for which its own drafts are not counted.
    """
    network, head, _ = _networks(settings)
    (prompt, image), codes = slots_of(settings, tokens, network.spec), tokens.about["vocab"]
    rows = settings.batch_size * settings.rows
    # read: positions of the target's pass; learnt: of the drafter's; scored: distributions
    read, learnt = prompt + image, prompt + image * settings.depths
    scored = image * (1 + 2 * settings.depths)
    if settings.drafter == "block":
        read = prompt + image * (1 + SHAPE.nodes) // _TOKENS
        learnt = PASSES * (prompt + image + ROUNDS * 2 * SHAPE.reach)
        scored = PASSES * 3 * ROUNDS * SHAPE.reach
    return {
        "target": 2 * rows * read * _in_layers(network),
        "drafter": 6 * rows * learnt * _in_layers(head),
        "distributions": 2 * rows * scored * network.spec.hidden * codes,
    }


def _networks(settings: TrainSettings) -> tuple[Transformer, nn.Module, TransformerSpec]:
    """Return target and drafter without their weights, and the drafter's sizes."""
    folder = checkpoint_folder(settings.model_path, "--model_path")
    family = FAMILIES[settings.model]
    network = family.network(read_object(folder / "config.json")).module
    config = head_config(settings)
    spec = family.drafter(config, network.spec)
    head = drafter_network(config, spec, network.spec, "the drafter").module
    return network, head, spec


def _in_layers(network: nn.Module) -> int:
    """Return how many weights every token is multiplied with: neither embedding nor head."""
    tables = ("embedding.weight", "head.weight")
    named = network.named_parameters()
    return sum(p.numel() for name, p in named if p.ndim > 1 and not name.endswith(tables))


def estimate_table(settings: TrainSettings, tokens: Tokens) -> str:
    """Return memory and work as text.

    The text encoder and the image tokenizer are not in it; `inspect` has them.
    """
    sizes, operations = memory(settings, tokens), work(settings, tokens)
    sizes["together"] = sum(sizes.values())
    widest, images = max(map(len, sizes)), settings.batch_size // settings.accumulate
    parts = ", ".join(f"{name} {count / 1e12:.3g}" for name, count in operations.items())
    total = f"{sum(operations.values()) / 1e12:.3g} TFLOP ({parts})"
    table = [
        f"memory per process, of {images} images at once in one process:",
        *(f"{name:{widest}}  {count / 2**30:9.3f} GiB" for name, count in sizes.items()),
        f"work of an update: {total}, without attention",
        "time: the log has images_per_second and seconds_left as they are measured",
    ]
    return "\n".join(table)
