"""`webtext release --push`, to a Hub on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback_hub import LoopbackHub, running_hub
from small_corpus import build_stage

pytest.importorskip("huggingface_hub", reason="needs the package huggingface_hub: pip install '.[hub]'")


@pytest.fixture
def hub() -> Iterator[LoopbackHub]:
    with running_hub() as hub:
        yield hub


def _push(hub: LoopbackHub, corpus: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ, "HF_ENDPOINT": hub.address, "HF_TOKEN": "hf_test", "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1", "HF_HOME": str(corpus.parent / "home"), "no_proxy": "127.0.0.1",
    }  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "webtext_cli",
        "release",
        "--corpus",
        str(corpus),
        "-o",
        str(corpus.parent / "out"),
    ]
    command += ["--license", "CC0-1.0", "--texts", "--quiet", "--push", "me/small", *arguments]
    return subprocess.run(command, env=environment, input="", capture_output=True, text=True, check=False)


def test_nothing_is_sent_without_a_yes(hub: LoopbackHub, corpus: Path) -> None:
    done = _push(hub, corpus)
    assert done.returncode == 1, done.stderr
    assert "me/small (new, private): " in done.stdout
    assert "nothing uploaded; --yes uploads without asking" in done.stdout
    assert (hub.repository, hub.commits, hub.uploaded) == ("", [], [])


def test_a_version_is_one_commit_with_its_tag_and_the_next_one_sends_what_changed(
    hub: LoopbackHub, corpus: Path
) -> None:
    output = corpus.parent / "out"
    done = _push(hub, corpus, "--yes")
    assert done.returncode == 0, done.stderr
    assert f"{hub.address}/datasets/me/small/tree/v1.0.0" in done.stdout
    assert hub.is_private
    assert hub.commits == ["1.0.0: first release"]
    assert hub.tags == {"v1.0.0": 1}
    names = {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()}
    assert {*hub.files} == {name for name in names if name != "manifest.json" and not name.startswith(".lock")}

    build_stage(corpus, "remove-wikipedia", extra_domain=["beta.org"])
    hub.uploaded.clear()
    done = _push(hub, corpus, "--yes", "--why", "beta.org asked for it")
    assert done.returncode == 0, done.stderr
    assert hub.commits[1] == "2.0.0: beta.org asked for it"
    assert hub.tags == {"v1.0.0": 1, "v2.0.0": 2}
    # The shard with beta.org, of texts and of links, and the list of removed documents.
    assert len(hub.uploaded) <= 3

    hub.uploaded.clear()
    assert _push(hub, corpus, "--yes").returncode == 0
    assert (hub.uploaded, hub.tags) == ([], {"v1.0.0": 1, "v2.0.0": 2})


@pytest.mark.slow
def test_an_upload_that_failed_is_resumed(hub: LoopbackHub, corpus: Path) -> None:
    hub.refuses_uploads = True
    done = _push(hub, corpus, "--yes")
    assert done.returncode == 1
    assert "--push me/small: " in done.stderr
    assert "re-run the same command to resume" in done.stderr
    assert hub.commits == []
    hub.refuses_uploads = False
    assert _push(hub, corpus, "--yes").returncode == 0
    assert hub.tags == {"v1.0.0": 1}


@pytest.mark.slow
def test_another_release_of_the_same_version_is_refused(hub: LoopbackHub, corpus: Path) -> None:
    assert _push(hub, corpus, "--yes").returncode == 0
    (corpus.parent / "out").rename(corpus.parent / "elsewhere")
    build_stage(corpus, "remove-wikipedia", extra_domain=["beta.org"])
    done = _push(hub, corpus, "--yes")
    assert done.returncode == 1
    assert "me/small: has another release v1.0.0; release into the folder that has its history" in done.stderr
    assert len(hub.commits) == 1


def test_a_malformed_name_is_refused_before_anything_is_built(hub: LoopbackHub, corpus: Path) -> None:
    done = _push(hub, corpus, "--push", "me/x y")
    assert done.returncode == 2
    assert "--push me/x y: is not the name of a repository" in done.stderr
    assert not (corpus.parent / "out").exists()
