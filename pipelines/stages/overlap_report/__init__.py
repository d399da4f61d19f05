"""Report which n-grams of a benchmark the corpus holds (section 4)."""
