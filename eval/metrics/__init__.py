"""How good the images are: one metric per file, on features that are computed once."""
