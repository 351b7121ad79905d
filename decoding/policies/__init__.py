"""Which nodes a tree has: one policy per file."""
