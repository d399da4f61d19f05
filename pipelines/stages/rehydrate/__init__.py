"""Compares the texts of fetched pages with those that a release recorded."""
