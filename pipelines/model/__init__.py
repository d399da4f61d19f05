"""GPT-2: the model, its training, sampling from it, and its export. The only place that imports torch."""
