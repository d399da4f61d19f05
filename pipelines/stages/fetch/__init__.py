"""Fetch: download the page behind every link, politely, as WARC, with an outcome for each link."""
