"""Blocks of text in a page, and a learned model that finds the main content among them."""
