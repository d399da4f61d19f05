"""Blocks of text in a page, and a learned model of which of them are its main content."""
