"""The command line of webtext, and nothing else."""
