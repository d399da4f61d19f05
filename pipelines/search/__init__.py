"""Searches the documents of a corpus: by an index, for the passages of a text, or by reading all of them."""
