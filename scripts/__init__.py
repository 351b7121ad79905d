"""Command-line pipelines that prepare checkpoints and data."""
