"""Search over a model's protocol (encode, init_state, decode_step): knows ids and
log-probabilities, nothing else.
"""
