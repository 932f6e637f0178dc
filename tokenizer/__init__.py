"""Tokenizers: text to ids and back, behind one protocol (`base.py`)."""
