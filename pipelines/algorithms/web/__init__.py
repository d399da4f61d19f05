"""URLs and character encodings of web pages."""
