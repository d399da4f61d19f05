"""The `filter` stage: keeps the documents that pass rules on their text, language and quality."""
