"""Rows: schemas, shards, and the readers of every input format."""
