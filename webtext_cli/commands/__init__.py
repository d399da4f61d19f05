"""One file a command: it reads options, calls one function of pipelines, prints the summary."""
