"""Checkpoint folders: where files lie, headers, strict reading."""
