"""From settings to images, tokens and drafters: the commands that load a model."""
