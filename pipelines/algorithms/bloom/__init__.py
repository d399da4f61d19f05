"""Bloom filters: the blocked filter, its file format and sizing, and pybloom-live."""
