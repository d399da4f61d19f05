"""Tokenizer file formats and encoding."""
