"""Comparisons of position schemes: one command each, resumable, with a table and a plot at the end."""
