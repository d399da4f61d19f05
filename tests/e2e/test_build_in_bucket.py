"""`webtext build` of the demo's corpus in an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipelines import storage
from pipelines.demo import corpus
from pipelines.demo.corpus import write_demo_corpus
from pipelines.demo.web import MIRROR_HOST, TOPICS_HOST, demo_routes, demo_web
from webtext_cli.main import main

pytestmark = pytest.mark.usefixtures("warm_processes")

_OTHERS = (".lock", "runs.log", "index.html", "train-bpe/timing.json", "train-bpe/report.html")


@pytest.fixture(autouse=True)
def _few_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve six modules, each on two sites, and twelve topics; and train a small vocabulary, in half as many shards."""
    routes = demo_routes()
    mirror = [path for url, path in routes.items() if MIRROR_HOST in url][:6]
    topics = [path for url, path in routes.items() if TOPICS_HOST in url][:12]
    few = {url: path for url, path in routes.items() if path in (*mirror, *topics)}
    for module in ("corpus", "web"):
        monkeypatch.setattr(f"pipelines.demo.{module}.demo_routes", lambda: few)
    monkeypatch.setattr("pipelines.demo.corpus.VOCABULARY_SIZE", 500)
    monkeypatch.setattr("pipelines.demo.corpus._TOML", corpus._TOML.replace("shards = 4", "shards = 2"))


def _build(folder: str) -> None:
    assert main(["build", "--corpus", folder, "--to", "tokenize", "--workers", "1", "--quiet"]) == 0


def _checksums(folder: str) -> dict[str, str]:
    """Return the checksums of all files by name, also of hidden ones, except locks and what contains times."""
    file_system, plain = storage.file_system(folder), folder.removeprefix("s3://")
    names = [str(path).removeprefix(f"{plain}/") for path in file_system.find(plain)]
    return {name: storage.sha256_of(f"{folder}/{name}") for name in names if not name.endswith(_OTHERS)}


@pytest.mark.slow
def test_the_demo_in_a_bucket_has_the_files_of_a_local_one(tmp_path: Path, bucket: str) -> None:
    local, remote = str(tmp_path / "demo"), f"{bucket}/demo"
    write_demo_corpus(local)
    with demo_web():
        _build(local)
    write_demo_corpus(remote)
    for path in storage.walk_files(f"{local}/fetch"):  # its pages contain times
        storage.write_bytes(remote + path.removeprefix(local), storage.read_bytes(path))
    _build(remote)
    assert _checksums(remote) == _checksums(local)
    assert storage.list_folder(bucket) == ["demo"]
