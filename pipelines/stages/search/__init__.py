"""Index the words of documents, for `webtext search`."""
