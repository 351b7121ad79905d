"""`inspect`: what a checkpoint's files are, and with --run whether the loaded model works."""
