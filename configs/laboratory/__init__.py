"""One small config for each positional encoding, on two bases: Multi30k on a CPU, and the original
experiment.
"""
