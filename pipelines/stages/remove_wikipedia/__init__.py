"""Remove Wikipedia: the paper leaves it out because many benchmarks are drawn from it (section 2.1)."""
