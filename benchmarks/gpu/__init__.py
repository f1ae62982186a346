"""What one command measures on a GPU: see run.py."""
