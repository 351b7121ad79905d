"""Measures of the generated images."""
