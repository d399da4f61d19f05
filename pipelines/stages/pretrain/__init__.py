"""Trains GPT-2 on the token shards of a corpus."""
