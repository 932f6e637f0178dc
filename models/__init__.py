"""The Transformer, its positional encodings, and decoding."""
