"""`webtext release`: the files of a release, its versions, and which corpora are refused."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_corpus import build_stage

from pipelines.build import status
from pipelines.engine.executor import LocalExecutor
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, DamagedShardError, InputError, UsageError
from pipelines.release.config import ReleaseConfig
from pipelines.release.stage import release
from pipelines.storage import files
from webtext_cli.main import main

_LICENSE = "ODC-By-1.0"


def _release(corpus: Path, output: Path, options: RunOptions | None = None, **config: Any) -> dict[str, Any]:
    """Release a corpus and return `release.json`."""
    made = ReleaseConfig(**{"license": _LICENSE, **config})
    release(made, corpus=str(corpus), output=str(output), options=options or RunOptions())
    return _read_release(output)


def _read_release(output: Path) -> dict[str, Any]:
    described: dict[str, Any] = json.loads((output / "release.json").read_text())
    return described


def _rows(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def _contents(folder: Path) -> dict[str, str]:
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".lock")]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


@pytest.fixture(scope="module")
def texts_release(built_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("releases") / "texts"
    _release(built_corpus, output, texts=True)
    return output


def test_urls_has_every_link_with_what_became_of_it(built_corpus: Path, texts_release: Path) -> None:
    rows = _rows(texts_release / "urls")
    links = {row["url"]: row for row in _rows(built_corpus / "scrape") if "original_url" in row}
    assert [row["url"] for row in rows] == list(links)
    pages = {row["url"]: row for row in _pages(built_corpus)}
    documents = {row["url"]: row for row in _documents(built_corpus / "remove-wikipedia")}
    drops = {
        row["url"]: f"{stage}.{row['reason']}"
        for stage in ("fetch", "extract", "dedup", "remove-wikipedia")
        for path in (built_corpus / stage).glob("dropped-*.parquet")
        for row in pq.read_table(path).to_pylist()
    }
    for row in rows:
        link, document = links[row["url"]], documents.get(row["url"])
        for name in ("domain", "title", "score", "submission_ids", "subreddits", "created_utc"):
            assert row[name] == link[name]
        assert (row["source"], row["fetched_at"]) == ("live", pages[row["url"]]["fetched_at"])
        assert row["outcome"] == ("kept" if document else drops[row["url"]])
        if document is None:
            assert row["words"] is row["text_sha256"] is row["sketch"] is None
        else:
            assert row["id"] == document["id"]
            assert row["words"] == document["words"]
            assert row["text_sha256"] == hashlib.sha256(document["text"].encode()).digest()
            assert len(row["sketch"]) == 128
    reasons = {row["outcome"] for row in rows}
    assert {reason.partition(".")[0] for reason in reasons} == {"kept", "fetch", "extract", "dedup", "remove-wikipedia"}


def _pages(corpus: Path) -> list[dict[str, Any]]:
    return [
        row for path in sorted((corpus / "fetch").glob("pages-*.parquet")) for row in pq.read_table(path).to_pylist()
    ]


def _documents(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.glob("documents-*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_data_has_the_documents_without_personal_data_and_no_names_of_users(
    built_corpus: Path, texts_release: Path
) -> None:
    originals = {row["id"]: row for row in _documents(built_corpus / "remove-wikipedia")}
    rows = _rows(texts_release / "data")
    assert [row["id"] for row in rows] == list(originals)
    changed = [row for row in rows if row["text"] != originals[row["id"]]["text"]]
    assert ["Write to email@example.com " in row["text"] for row in changed] == [True]
    assert _read_release(texts_release)["redacted"] == ["email", "ip", "phone"]
    for path in texts_release.rglob("*.parquet"):
        assert not {"author", "authors", "warc_file"} & {*pq.read_schema(path).names}, path
        assert b"someone" not in path.read_bytes()
    card = (texts_release / "README.md").read_text()
    assert "1 for email, 0 for ip, 0 for phone in texts" in card


def test_no_redact_keeps_texts_and_says_so(built_corpus: Path, tmp_path: Path) -> None:
    described = _release(built_corpus, tmp_path / "out", texts=True, redact=False)
    assert described["redacted"] == []
    assert any("jane.doe@sample-site.com" in row["text"] for row in _rows(tmp_path / "out" / "data"))
    assert "were not replaced" in (tmp_path / "out" / "README.md").read_text()


def test_by_default_there_are_no_texts(built_corpus: Path, texts_release: Path, tmp_path: Path) -> None:
    described = _release(built_corpus, tmp_path / "out")
    assert described["texts"] is False
    assert not (tmp_path / "out" / "data").exists()
    # The hashes are those of the texts before personal data are replaced, so both are the same.
    assert _contents(tmp_path / "out" / "urls") == _contents(texts_release / "urls")


def test_the_checksums_are_those_of_all_files(texts_release: Path) -> None:
    done = subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=texts_release, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    listed = {line.split("  ")[1] for line in (texts_release / "SHA256SUMS").read_text().splitlines()}
    assert listed == {*_contents(texts_release)} - {"manifest.json", "SHA256SUMS"}


def test_release_json_records_the_stages(built_corpus: Path, texts_release: Path) -> None:
    described = _read_release(texts_release)
    assert {key: described[key] for key in ("format", "name", "version", "previous", "license", "texts", "why")} == {
        "format": 1, "name": "small", "version": "1.0.0", "previous": None, "license": _LICENSE, "texts": True,
        "why": "first release",
    }  # fmt: skip
    for stage in ("scrape", "fetch", "extract", "dedup", "remove-wikipedia"):
        manifest = json.loads((built_corpus / stage / "manifest.json").read_text())
        expected = {
            key: manifest[key] for key in ("version", "config", "inputs", "records_in", "records_out", "dropped")
        }
        assert described["stages"][stage] == expected
    assert described["text_format"] == "text"
    fetched = max(page["fetched_at"] for page in _pages(built_corpus))
    assert described["date"] == f"{fetched:%F}"


def test_parquet_files_have_page_indexes(texts_release: Path) -> None:
    for path in texts_release.rglob("urls-*.parquet"):
        group = pq.read_metadata(path)
        if group.num_rows:
            assert group.row_group(0).column(0).has_offset_index
            assert group.row_group(0).column(0).compression == "ZSTD"


@pytest.mark.usefixtures("warm_processes")
def test_two_workers_write_the_same_bytes(built_corpus: Path, texts_release: Path, tmp_path: Path) -> None:
    _release(built_corpus, tmp_path / "out", RunOptions(executor=LocalExecutor(2)), texts=True)
    assert _contents(tmp_path / "out") == _contents(texts_release)


def test_a_killed_release_resumes_to_the_same_bytes(built_corpus: Path, texts_release: Path, tmp_path: Path) -> None:
    killed = 0
    for count in (2, 3, 4, 5, 6, 8, 10, 12, 14):
        process = os.fork()
        if not process:
            _kill_at_rename(count)
            _release(built_corpus, tmp_path / "out", texts=True)
            os._exit(0)
        _, status = os.waitpid(process, 0)
        killed += os.waitstatus_to_exitcode(status) == -signal.SIGKILL
    assert killed >= 3
    _release(built_corpus, tmp_path / "out", texts=True)
    assert _contents(tmp_path / "out") == _contents(texts_release)


def _kill_at_rename(count: int) -> None:
    """Make this process kill itself before the `count`-th file gets its name."""
    rename, renames = files._rename, iter(range(1, count + 1))

    def counted(*arguments: Any) -> None:
        if next(renames) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        rename(*arguments)

    files._rename = counted


def test_a_release_that_is_current_is_only_verified(built_corpus: Path, texts_release: Path) -> None:
    before = _contents(texts_release)
    described = _release(built_corpus, texts_release, texts=True, why="nothing has changed", date="2030-01-01")
    assert described["version"] == "1.0.0"
    assert _contents(texts_release) == before


def test_removed_documents_raise_the_major_version_and_are_listed(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    _release(corpus, output, texts=True)
    kept = {row["id"]: row for row in _rows(output / "data")}
    sums = hashlib.sha256((output / "release.json").read_bytes()).hexdigest()
    build_stage(corpus, "remove-wikipedia", extra_domain=["beta.org"])
    described = _release(corpus, output, texts=True, date="2031-02-03", why="beta.org asked for it")
    gone = sorted(id for id, row in kept.items() if row["domain"] == "beta.org")
    assert described["version"] == "2.0.0"
    assert described["previous"] == {"version": "1.0.0", "sha256": sums}
    assert described["changes"] == {"added": 0, "removed": len(gone), "changed": 0}
    assert [entry["version"] for entry in described["history"]] == ["1.0.0"]
    assert described["why"] == "beta.org asked for it"
    removed = _rows(output / "removed")
    assert [row["id"] for row in removed] == gone
    assert {(row["reason"], row["date"]) for row in removed} == {("remove-wikipedia.wikipedia_domain", "2031-02-03")}
    assert sorted(row["id"] for row in _rows(output / "data")) == sorted({*kept} - {*gone})
    assert "| 2.0.0 | 2031-02-03 |" in (output / "README.md").read_text()

    build_stage(corpus, "remove-wikipedia")
    described = _release(corpus, output, texts=True)
    assert described["version"] == "2.1.0"
    assert described["changes"] == {"added": len(gone), "removed": 0, "changed": 0}
    assert described["why"] == f"{len(gone)} documents added"
    assert described["date"] == "2031-02-03"  # not before the version before
    assert _rows(output / "removed") == []
    assert [entry["version"] for entry in described["history"]] == ["1.0.0", "2.0.0"]


def test_another_description_raises_the_patch_version(corpus: Path, tmp_path: Path) -> None:
    _release(corpus, tmp_path / "out")
    described = _release(corpus, tmp_path / "out", license="CC-BY-4.0")
    assert (described["version"], described["license"]) == ("1.0.1", "CC-BY-4.0")
    assert described["why"] == "the same documents, described or built anew"
    for texts, version, why in ((True, "1.1.0", "texts published"), (False, "2.0.0", "texts withdrawn")):
        described = _release(corpus, tmp_path / "out", texts=texts, license="CC-BY-4.0")
        assert (described["version"], described["why"]) == (version, why)


def test_a_killed_new_version_leaves_the_old_one_until_it_is_complete(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    _release(corpus, output)
    before = _contents(output)
    build_stage(corpus, "remove-wikipedia", extra_domain=["beta.org"])
    process = os.fork()
    if not process:
        _kill_at_rename(6)
        _release(corpus, output, date="2031-02-03")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    assert {name: content for name, content in _contents(output).items() if name[0] not in "._"} == before
    _release(corpus, output, date="2031-02-03")
    shutil.copytree(corpus, tmp_path / "again" / "small")
    _release(tmp_path / "again" / "small", tmp_path / "reference", date="2031-02-03")
    assert _contents(output / "urls") == _contents(tmp_path / "reference" / "urls")
    assert _read_release(output)["version"] == "2.0.0"


def test_a_release_of_another_name_is_refused(corpus: Path, tmp_path: Path) -> None:
    _release(corpus, tmp_path / "out")
    for options in (RunOptions(), RunOptions(overwrite=True)):
        with pytest.raises(ChangedRunError, match="is the release small; give this --name, or"):
            _release(corpus, tmp_path / "out", options, name="other")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("not to be lost")
    with pytest.raises(InputError, match="was not written by webtext"):
        _release(corpus, tmp_path / "mine")
    with pytest.raises(ChangedRunError, match="it was built by dedup"):
        _release(corpus, corpus / "dedup")


def test_a_damaged_release_is_repaired_to_the_same_version(
    built_corpus: Path, texts_release: Path, tmp_path: Path
) -> None:
    output = Path(shutil.copytree(texts_release, tmp_path / "out"))
    (output / "urls/urls-00000.parquet").write_bytes(b"damaged")
    for name in ("README.md", "release.json"):
        (output / name).unlink()
    _release(built_corpus, output, texts=True)
    assert _contents(output) == _contents(texts_release)


def test_what_was_edited_in_the_folder_is_not_overwritten(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    _release(corpus, output)
    before = _contents(output)
    for name, license in itertools.product(("README.md", "training-summary.md"), (_LICENSE, "MIT")):
        content = (output / name).read_bytes()
        (output / name).write_bytes(content + b"mine")
        with pytest.raises(DamagedShardError, match=f"{name}: is damaged .*what you want to add belongs in --notes"):
            _release(corpus, output, RunOptions(overwrite=True), license=license)
        (output / name).write_bytes(content)
        assert _contents(output) == before
    shutil.rmtree(output / "removed")
    with pytest.raises(
        DamagedShardError, match=r"removed\.parquet: is missing; restore this file, or delete it and re"
    ):
        _release(corpus, output, license="MIT")
    _release(corpus, output)
    assert _contents(output) == before


def test_an_interrupted_repair_is_not_replaced_by_another_version(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    _release(corpus, output)
    _release(corpus, output, license="MIT")
    before = _contents(output)
    (output / "urls" / "urls-00000.parquet").write_bytes(b"damaged")
    process = os.fork()
    if not process:
        _kill_at_rename(8)
        _release(corpus, output, license="MIT")
        os._exit(0)
    os.waitpid(process, 0)
    assert not (output / "manifest.json").exists()
    with pytest.raises(ChangedRunError, match='an unfinished run that differs: license was "MIT"'):
        _release(corpus, output)
    _release(corpus, output, license="MIT")
    assert _contents(output) == before


def test_what_is_not_given_is_that_of_the_version_before(corpus: Path, tmp_path: Path) -> None:
    output, notes = tmp_path / "out", tmp_path / "notes.md"
    notes.write_text("A *note* <b>of ours</b>\n")
    given = {"name": "mine", "creator": "We", "url": "https://example.org/", "notes": str(notes)}
    assert _release(corpus, output, **given)["version"] == "1.0.0"
    assert _release(corpus, output)["version"] == "1.0.0"
    described = _release(corpus, output, license="cc0-1.0")
    assert (described["version"], described["name"], described["license"]) == ("1.0.1", "mine", "CC0-1.0")
    for name in ("README.md", "training-summary.md"):
        assert "## Notes\n\nA *note* <b>of ours</b>\n" in (output / name).read_text()
    croissant = json.loads((output / "croissant.json").read_text())
    assert (croissant["url"], croissant["creator"]["name"]) == ("https://example.org/", "We")
    notes.write_text("")
    assert _release(corpus, output, license="CC0-1.0", notes=str(notes))["version"] == "1.0.2"
    assert "## Notes" not in (output / "README.md").read_text()
    notes.write_bytes(b"\xff")
    with pytest.raises(InputError, match=r"notes\.md: is not a text in UTF-8"):
        _release(corpus, output, notes=str(notes))


def test_what_was_removed_on_request_is_listed_from_the_first_release_on(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = tmp_path / "requests.jsonl"

    def remove(domain: str) -> set[str]:
        request = {"kind": "domain", "value": domain, "reason": "asked", "date": "2027-05-06"}
        requests.write_text(json.dumps(request))
        assert main(["remove", str(requests), "--corpus", str(corpus), "--quiet"]) == 0
        return {id for path in (corpus / "removals").glob("*-ids.json") for id in json.loads(path.read_text())}

    gone = remove("beta.org")
    _release(corpus, tmp_path / "out")
    assert {(row["id"], row["reason"]) for row in _rows(tmp_path / "out" / "removed")} == {
        (id, "removed") for id in gone
    }
    summary = (tmp_path / "out" / "training-summary.md").read_text()
    assert f"Removed on request: {len(gone)} documents" in summary
    before = {row["id"] for row in _rows(tmp_path / "out" / "urls")}
    later = remove("alpha.com")
    described = _release(corpus, tmp_path / "out")
    assert described["version"] == "2.0.0"
    assert {row["id"] for row in _rows(tmp_path / "out" / "removed")} == later
    # Including what was dropped, whose rows are no longer in urls/.
    assert before - {row["id"] for row in _rows(tmp_path / "out" / "urls")} <= later


def test_a_corpus_without_documents_can_be_released(corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "all.jsonl").write_text(
        "".join(
            json.dumps({"kind": "id", "value": row["id"], "reason": "asked", "date": "2027-05-06"}) + "\n"
            for row in _documents(corpus / "remove-wikipedia")
        )
    )
    assert main(["remove", str(tmp_path / "all.jsonl"), "--corpus", str(corpus), "--quiet"]) == 0
    described = _release(corpus, tmp_path / "out", texts=True)
    assert "0 documents of 0 domains with 0 words (0 bytes of text)" in (tmp_path / "out" / "README.md").read_text()
    assert described["date"] == "2027-05-06"


def test_a_later_version_keeps_its_history_if_its_description_is_damaged(corpus: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    _release(corpus, output)
    _release(corpus, output, license="CC-BY-4.0")
    before = _contents(output)
    for name in ("README.md", "release.json", "removed/removed.parquet"):
        content = (output / name).read_bytes()
        (output / name).write_bytes(content + b"x")
        with pytest.raises(DamagedShardError, match=f"{name}: is damaged .*; restore this file"):
            _release(corpus, output, license="CC-BY-4.0")
        (output / name).write_bytes(content)
        assert _contents(output) == before
    (output / "urls" / "urls-00000.parquet").write_bytes(b"damaged")
    _release(corpus, output, license="CC-BY-4.0")
    assert _contents(output) == before


def test_the_files_of_the_version_before_must_be_intact(corpus: Path, tmp_path: Path) -> None:
    _release(corpus, tmp_path / "out")
    (tmp_path / "out" / "urls" / "urls-00000.parquet").write_bytes(b"damaged")
    with pytest.raises(DamagedShardError, match=r"urls-00000\.parquet: is damaged"):
        _release(corpus, tmp_path / "out", license="CC-BY-4.0")


def test_a_stale_stage_is_refused(corpus: Path, tmp_path: Path) -> None:
    build_stage(corpus, "dedup", threshold=0.5)
    states = {stage.stage: stage.state for stage in status(str(corpus), verify=False)}
    assert states["remove-wikipedia"] == "stale"
    assert {states[name] for name in ("extract", "dedup")} == {"done"}
    with pytest.raises(
        InputError, match=r"remove-wikipedia: is stale \(dedup has changed since\); run `webtext build`"
    ):
        _release(corpus, tmp_path / "out")


def test_an_interrupted_removal_is_refused(corpus: Path, tmp_path: Path) -> None:
    (corpus / "removals").mkdir()
    (corpus / "removals" / "pending.json").write_text("{}")
    with pytest.raises(InputError, match="a removal of documents was interrupted; complete it with `webtext remove`"):
        _release(corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_unfinished_stage_is_refused(corpus: Path, tmp_path: Path) -> None:
    (corpus / "remove-wikipedia" / "manifest.json").unlink()
    (corpus / "remove-wikipedia" / "_journal").mkdir()
    with pytest.raises(InputError, match="remove-wikipedia has not finished"):
        _release(corpus, tmp_path / "out")


@pytest.mark.parametrize(
    "name",
    ["scrape/links-0000*", "fetch/pages-0000*.parquet", "dedup/dropped-0000*", "remove-wikipedia/documents-0000*"],
)
def test_a_damaged_stage_is_refused(corpus: Path, name: str, tmp_path: Path) -> None:
    path = max(corpus.glob(name), key=lambda file: file.stat().st_size)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(DamagedShardError, match=rf"{path.name}: is damaged .*re-run `webtext {path.parent.name}`"):
        _release(corpus, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_page_of_which_nothing_is_known_is_refused(corpus: Path, tmp_path: Path) -> None:
    folder = corpus / "remove-wikipedia"
    path = max(folder.glob("dropped-0000*"), key=lambda file: file.stat().st_size)
    pq.write_table(pq.read_table(path).slice(0, 0), path)
    _update_checksum(folder, path)
    with pytest.raises(InputError, match=r"wikipedia\.org/.* is neither a document nor dropped; run `webtext build`"):
        _release(corpus, tmp_path / "out")


def _update_checksum(folder: Path, path: Path) -> None:
    """Make the manifest of a stage that of a changed file."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for shard in manifest["shards"]:
        for file in shard["files"]:
            if file["name"] == path.name:
                file |= {"size_bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _own_corpus(folder: Path, **document: Any) -> Path:
    """Make a corpus of texts that are of no links."""
    (folder / "own").mkdir(parents=True)
    (folder / "own" / "webtext.toml").write_text(
        '[build]\nskip = ["filter", "remove-wikipedia"]\n[dedup]\ninput = ["../own.jsonl"]\n'
    )
    rows = [{"id": f"doc-{number}", "text": f"the text number {number} " * 9, **document} for number in (1, 2, 2)]
    rows[2]["id"] = "copy"
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["build", "--from", "dedup", "--to", "dedup", "--corpus", str(folder / "own"), "--quiet"]) == 0
    return folder / "own"


def test_documents_without_links_have_a_row_each(tmp_path: Path) -> None:
    corpus = _own_corpus(tmp_path)
    with pytest.raises(UsageError, match="no dates; name the day of the release with --date"):
        _release(corpus, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    described = _release(corpus, tmp_path / "out", date="2026-11-28", texts=True)
    assert list(described["stages"]) == ["dedup"]
    rows = {row["id"]: row for row in _rows(tmp_path / "out" / "urls")}
    kept, copy = ("doc-2", "copy") if rows["doc-2"]["outcome"] == "kept" else ("copy", "doc-2")
    assert {id: row["outcome"] for id, row in rows.items()} == {
        "doc-1": "kept", kept: "kept", copy: "dedup.exact_duplicate",
    }  # fmt: skip
    assert [row["words"] for row in _rows(tmp_path / "out" / "data")] == [36, 36]
    assert rows["doc-1"]["text_sha256"] == hashlib.sha256(("the text number 1 " * 9).encode()).digest()
    assert "users of Reddit" not in (tmp_path / "out" / "README.md").read_text()
    croissant = json.loads((tmp_path / "out" / "croissant.json").read_text())
    assert croissant["rai:dataPreprocessingProtocol"] == ["dedup"]


def test_documents_with_urls_of_their_own_have_their_domain_and_date(tmp_path: Path) -> None:
    corpus = _own_corpus(tmp_path, url="https://www.example.co.uk/a", created_utc=1451606400, score=5)
    assert _release(corpus, tmp_path / "out")["date"] == "2016-01-01"
    row = _rows(tmp_path / "out" / "urls")[0]
    assert (row["url"], row["domain"], row["score"]) == ("https://www.example.co.uk/a", "example.co.uk", 5)


def test_removed_rows_of_documents_are_counted_but_not_published(tmp_path: Path) -> None:
    corpus = _own_corpus(tmp_path)
    path = corpus / "dedup" / "dropped-00000.parquet"
    drops = pq.read_table(path)
    pq.write_table(drops.set_column(2, drops.schema.field(2), pa.array(["removed"])), path)
    _update_checksum(corpus / "dedup", path)
    (corpus / "removals.jsonl").write_text('{"kind": "id", "value": "x", "reason": "asked", "date": "2027-05-06"}\n')
    described = _release(corpus, tmp_path / "out")
    assert described["date"] == "2027-05-06"
    assert len(_rows(tmp_path / "out" / "urls")) == 2
    assert [(row["reason"], row["date"]) for row in _rows(tmp_path / "out" / "removed")] == [("removed", "2027-05-06")]
    assert read_manifest(str(tmp_path / "out")).dropped == {"removed": 1}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"license": ""}, "--license is missing: not a known license; name ODC-By-1.0"),
        ({"license": "my own"}, "--license my own: not a known license; name ODC-By-1.0, "),
        ({"license": "MIT2"}, "--license MIT2: not a known license; did you mean MIT? (others by their URL)"),
        ({"license": "ODC-BY"}, "did you mean ODC-By-1.0?"),
        ({"date": "28.11.2026"}, "--date 28.11.2026: name a day, such as 2026-11-28"),
        ({"date": "2026-13-01"}, "--date 2026-13-01"),
    ],
)
def test_a_malformed_option_is_refused_before_anything_is_read(
    config: dict[str, str], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)):
        _release(tmp_path / "absent", tmp_path / "out", **config)


def test_a_folder_that_is_not_a_corpus_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["release", "--corpus", str(tmp_path / "absent"), "-o", str(tmp_path / "out"), "--license", _LICENSE]
    assert main(arguments) == 1
    assert "absent: is not a corpus (no such folder); name another folder with --corpus; " in capsys.readouterr().err
    assert main(["release", "--corpus", str(tmp_path), "--license", _LICENSE]) == 2
    assert "missing --output" in capsys.readouterr().err


def test_the_command_prints_its_summary(built_corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["release", "--corpus", str(built_corpus), "-o", str(tmp_path / "out"), "--license", _LICENSE, "--json"]
    assert main([*arguments, "--quiet", "--urls-only"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["version"] == "1.0.0"
    assert summary["records_out"] == len(_rows(tmp_path / "out" / "urls"))
    assert main([*arguments, "--urls-only", "--texts"]) == 2
    assert main([*arguments, "--yes"]) == 2
    assert "--yes has no effect without --push" in capsys.readouterr().err
    assert main(["release", "--corpus", str(built_corpus), "-o", str(built_corpus / "x"), "--license", _LICENSE]) == 2
    assert "overlap; choose another --output" in capsys.readouterr().err
