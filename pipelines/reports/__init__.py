"""HTML reports: one self-contained page each."""
