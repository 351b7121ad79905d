"""The pipeline that makes the tiny text-to-image model from scratch, one module per step."""
