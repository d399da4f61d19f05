"""Report which n-grams of a benchmark the corpus contains (section 4)."""
