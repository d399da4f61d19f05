"""What the forks of `warm_processes.py` find done: modules imported, the extractors used once, and a model loaded."""

from __future__ import annotations

import os

import pipelines.stages.dedup.stage
import pipelines.stages.fetch.stage
import pipelines.stages.filter.stage
import pipelines.stages.overlap_index.stage
import pipelines.stages.overlap_report.stage
import pipelines.stages.remove_wikipedia.reference
import pipelines.stages.scrape.stage
import pipelines.stages.search.stage
import pipelines.stages.tokenize.stage
import pipelines.stages.train_bpe.stage  # noqa: F401
from pipelines.stages.extract import child, extractors
from pipelines.stages.filter import languages

for extractor in (extractors.fast_text, extractors.trafilatura_text):
    page = child.RawPage(child._WARM_UP_PAGE, "text/html; charset=latin-1", None)
    child.extract_text(extractor, page)
languages._load_model()
os.fsync = lambda _descriptor: None  # as in conftest.py
