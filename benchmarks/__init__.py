"""Speed and memory, measured: scripts that are run from the root of the repository."""
