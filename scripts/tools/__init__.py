"""Tools around the program: exactness check, calibration, costs, timing, maps, tables."""
