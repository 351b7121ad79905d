"""What tree policies bring: the tables of traced runs."""
