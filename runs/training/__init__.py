"""Training a drafter, and judging it."""
