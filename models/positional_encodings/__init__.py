"""Positional encodings: the two contracts (`base.py`) and one file per family."""
