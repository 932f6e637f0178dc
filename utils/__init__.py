"""Configuration loading, training engines, checkpoints, metrics and pictures."""
