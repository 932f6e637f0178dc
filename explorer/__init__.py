"""The explorer: what a model does with one sentence, as one HTML file."""
