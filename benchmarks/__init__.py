"""Measurements of speed and memory: scripts to run from the root of the repository."""
