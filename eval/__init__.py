"""What came out: image metrics, speed comparisons, the report."""
