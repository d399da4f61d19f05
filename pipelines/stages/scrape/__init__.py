"""Scrape: collect the outbound links of Reddit that reached a score (section 2.1)."""
