"""The demo: the whole pipeline on the pages of Python's own documentation server."""
