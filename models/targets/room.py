"""Whether a prompt and its image find room among a transformer's positions."""

from models.base import ImageGrid, TransformerSpec


def room_for_prompts(spec: TransformerSpec, grid: ImageGrid) -> int:
    """Return the positions that an image leaves for its prompt; ValueError if it leaves none."""
    needed = grid.slots(grid.tokens)
    if spec.max_positions <= needed:
        raise ValueError(
            f"config.json: max_position_embeddings is {spec.max_positions}; "
            f"an image of {grid.rows} x {grid.columns} tokens takes {needed}"
        )
    return spec.max_positions - needed


def refuse_long(row: list[int], room: int, text: str) -> list[int]:
    """Return the ids of a prompt; ValueError if there is no room for so many."""
    if len(row) > room:
        raise ValueError(
            f"the prompt has {len(row)} tokens with those around it, the model takes {room}: "
            f"{text[:60]!r}"
        )
    return row
