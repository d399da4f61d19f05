"""Fine-tuning as in GPT-1: tasks as sequences of tokens, and the training of a classifier on them."""
