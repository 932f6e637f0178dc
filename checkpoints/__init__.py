"""Runs on disk: folders, checkpoint files, averaging, export."""
