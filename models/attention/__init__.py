"""Attention: kernels under one signature, the tap that records weights, and the multi-head modules."""
