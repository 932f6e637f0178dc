"""Comparisons of position schemes and methods: one command each, with tables and plots."""
