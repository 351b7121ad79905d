"""What tree policies bring: rounds without the target's passes, and the tables made of them."""
