"""Publishes a corpus as a folder that others can load, verify and rebuild."""
