"""Settings, and how a command line or a recipe becomes them. Nothing here imports torch,
but where a GPU is, whose number type is another."""
