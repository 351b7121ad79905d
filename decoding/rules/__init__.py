"""Rules of the literature to compare with, one per file; the methods of the paper need none."""
