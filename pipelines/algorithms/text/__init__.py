"""Text decoding and normalization."""
