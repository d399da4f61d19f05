"""Fixtures of the contract tests: a small web, and a corpus on which every stage has run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import small_web
from contract_cases import run_stage, stage_names

from pipelines.engine.run import RunOptions


@pytest.fixture(scope="session")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment that sends requests to the small web of the tests."""
    with small_web.served(small_web.pages(), tmp_path_factory.mktemp("web")) as environment:
        yield environment


@pytest.fixture
def on_the_web(web: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Send the requests of a test to the small web."""
    for variable, value in web.items():
        monkeypatch.setenv(variable, value)


@pytest.fixture(scope="session")
def corpus(web: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus on which every stage has run once, in one process: the reference for the other runs."""
    folder = tmp_path_factory.mktemp("contract")
    (folder / "dumps").mkdir()
    small_web.write_dumps(folder / "dumps")
    texts = ["the corpus of the language model is not what he said about it at all", "two words"]
    texts.append(" ".join(small_web.words_text(2, 240).split()[5:40]))
    (folder / "sentences.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    with pytest.MonkeyPatch.context() as patch:
        for variable, value in web.items():
            patch.setenv(variable, value)
        for name in stage_names():
            run_stage(folder, name, folder / name, RunOptions())
    return folder
