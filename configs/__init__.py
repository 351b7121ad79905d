"""Settings, and how a command line or a recipe becomes them. Nothing here imports torch."""
