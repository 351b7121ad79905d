"""The included world: painted scenes, how `ckpts/tiny` is trained on them, and its judge."""
