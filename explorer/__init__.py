"""The explorer: one sentence through a model, as one HTML file."""
