"""What a training run reports: spikes, norms, estimates, reference losses."""
