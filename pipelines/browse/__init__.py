"""`webtext browse`: a corpus as pages of a local web server."""
