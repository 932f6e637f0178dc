"""Experiments, a file each, and the machinery: schema, positions, serialisation, loading."""
