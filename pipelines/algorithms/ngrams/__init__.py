"""Word n-grams: normalization, hashing, and the exact index of benchmarks."""
