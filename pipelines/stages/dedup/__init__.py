"""Dedup: exact and near duplicates. The paper's "de-duplication" is not described further (section 2.1)."""
