"""Settings, and how a command line or a recipe becomes them.

Imports torch only to ask whether it sees a GPU, and only where there is a driver.
"""
