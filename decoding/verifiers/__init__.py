"""Which drafts are accepted: one rule per file."""
