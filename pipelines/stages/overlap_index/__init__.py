"""Index the corpus's n-grams in a Bloom filter, as the paper's overlap audit does (section 4)."""
