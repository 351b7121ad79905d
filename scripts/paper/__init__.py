"""The paper's tables."""
