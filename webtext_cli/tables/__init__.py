"""Terminal output of the commands: tables and summaries of their results."""
