"""A finished corpus as tables: queries, explanations, documents to read, and counts."""
