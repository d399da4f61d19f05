"""Training: data order, optimizer, checkpoints, parallelism."""
