"""A training run: its parts, its engines, its log, its end."""
