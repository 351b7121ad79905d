"""What the tiny model was trained on: drawn scenes with captions."""
