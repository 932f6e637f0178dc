"""Attention: the kernels, the multi-head modules, and the tap that records weights."""
