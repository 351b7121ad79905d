"""One file per family of target models."""
