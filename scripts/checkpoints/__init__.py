"""Checkpoints of every family with random weights, in their public layouts.

Each module has writers by model: SMALL, with as many image tokens as the program asks of the model
and tiny networks, and FULL, of the published sizes.
"""
