"""The program's folders, from the ground up: each may import those before it."""

FOLDERS = (
    "configs",
    "support",
    "scenes",
    "models",
    "decoding",
    "drafters",
    "runs",
    "eval",
    "adt_tree",
    "scripts",
)
