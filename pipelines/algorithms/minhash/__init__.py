"""Near-duplicate detection by MinHash."""
