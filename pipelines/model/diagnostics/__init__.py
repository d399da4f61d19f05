"""What a training run reports: spikes, the documents of a batch, estimates."""
