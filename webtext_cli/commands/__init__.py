"""One module per command: it parses options, calls one function of pipelines, and prints the summary."""
