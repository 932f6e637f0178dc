"""Experiment configurations: schema, serialisation, and one file per experiment."""
