"""What the commands print on the terminal: tables and summaries of their results."""
