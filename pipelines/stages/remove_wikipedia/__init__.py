"""Removes Wikipedia, as the paper does because many benchmarks are drawn from it (section 2.1)."""
