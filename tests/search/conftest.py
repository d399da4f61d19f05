"""A corpus of five documents with an index."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def indexed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus; tests must not change it."""
    pytest.importorskip("tantivy", reason="needs the package tantivy: pip install '.[search]'")
    from small_index import TEXTS, build_index, document, write_documents

    corpus = tmp_path_factory.mktemp("indexed") / "corpus"
    languages, years = ("en", "en", "fr", "en", None), (0, 1_300_000_000, 1_400_000_000, 1_400_000_000, None)
    subreddits = (["Animals", "news"], ["animals"], [], None, None)
    rows = [
        document(
            number,
            text,
            title=f"Title {number} of a <i>page</i>",
            language=languages[number],
            created_utc=years[number],
            subreddits=subreddits[number],
        )
        for number, text in enumerate(TEXTS)
    ]
    write_documents(corpus, [rows[:3], rows[3:]])
    build_index(corpus)
    return corpus
