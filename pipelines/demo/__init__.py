"""The demo: the whole line on a real web that every machine with Python has, its own documentation server."""
