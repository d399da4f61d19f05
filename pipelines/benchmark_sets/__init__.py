"""Evaluation sets: the registry, and readers of their files."""
