"""Runs: stages, manifests, journals, locks, executors, run records, config."""
