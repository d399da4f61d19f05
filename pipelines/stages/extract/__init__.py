"""Extract: the main text of each page. The paper used Dragnet and Newspaper (section 2.1)."""
