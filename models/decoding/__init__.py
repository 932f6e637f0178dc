"""Search over a model's protocol: knows ids and log-probabilities, nothing else."""
