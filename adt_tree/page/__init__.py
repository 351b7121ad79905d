"""The page of `adt-tree demo`: plain decoding and a fast method draw the same image in turns."""
