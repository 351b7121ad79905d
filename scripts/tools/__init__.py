"""Single tools around the program."""
