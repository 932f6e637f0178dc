"""Where sentence pairs come from; one module per kind of corpus."""
