"""Corpora, the tokenised cache and length-bucketed batches."""
