"""Tools around the program: calibration, conversion, comparisons."""
