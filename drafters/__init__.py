"""Drafters: where draft tokens come from, with weights of their own or without."""
