"""Compares corpora by the models that are trained on them."""
