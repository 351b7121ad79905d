"""Checkpoint folders: where files lie, headers, strict reading.

Whatever opens files, here, in `codecs` and in `targets`, raises a ValueError that names the file or
flag, and the key or entry that is missing, damaged or different.
"""
