"""What the images are worth: one metric per file, all on features that are computed once."""
