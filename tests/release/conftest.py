"""A small corpus of the tests' web, built by every stage up to the documents."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import small_web
from small_corpus import STAGES, build_stage


@pytest.fixture(scope="session")
def built_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus, which no test changes."""
    corpus = tmp_path_factory.mktemp("corpora") / "small"
    (corpus / "dumps").mkdir(parents=True)
    small_web.write_dumps(corpus / "dumps")
    pages = small_web.pages()
    url = "http://alpha.com/page-5.html"
    pages[url] = pages[url].replace(b"<p>", b"<p>Write to jane.doe@sample-site.com ", 1)
    del pages["http://gamma.co.uk/page-6.html"]
    with small_web.served(pages, tmp_path_factory.mktemp("web")) as environment, pytest.MonkeyPatch.context() as patch:
        for variable, value in environment.items():
            patch.setenv(variable, value)
        for name in STAGES:
            build_stage(corpus, name)
    return corpus


@pytest.fixture
def corpus(built_corpus: Path, tmp_path: Path) -> Path:
    """A copy of the corpus, for a test that changes it."""
    return Path(shutil.copytree(built_corpus, tmp_path / "small"))
