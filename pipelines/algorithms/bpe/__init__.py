"""Byte-level BPE: the split of text into words, word counts, and merges."""
