"""`webtext remove`: nothing of the documents remains, and all else stays as it was."""

from __future__ import annotations

import itertools
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import small_web
from removal_run import (
    STAGES,
    contents,
    ngrams,
    pages,
    remove,
    remove_killed,
    request,
    submission,
    text_of,
    url_of,
    words_of,
    write_corpus,
    write_dump,
    write_requests,
)
from warm_processes import start_process

from pipelines.algorithms.web.urls import id_of_url
from pipelines.build import status
from pipelines.corpus.removed_files import find_documents as _find_documents
from pipelines.dry_run import decide_build
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions
from pipelines.model.training.data import open_tokens
from pipelines.model.training.order import BlockOrder
from pipelines.search.query import SearchIndex
from webtext_cli.main import main

_DOCUMENT_STAGES = ("extract", "filter", "dedup", "remove-wikipedia")
# They contain texts, so they are deleted; `--rebuild` writes them again.
_DELETED = ("overlap-report", "search")
_REMOVED = [*[number for number in range(96) if number % 4 < 2][:46], 2, 3, 94, 95]


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with small_web.served(pages(), tmp_path_factory.mktemp("web")) as environment:
        yield environment


@pytest.fixture(scope="module")
def built(web: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with all stages, which tests copy."""
    corpus = tmp_path_factory.mktemp("removal") / "corpus"
    write_corpus(corpus)
    with pytest.MonkeyPatch.context() as patch:
        from warm_processes import multiprocessing_with_forks

        patch.setattr("pipelines.stages.extract.child.multiprocessing", multiprocessing_with_forks())
        for variable, value in web.items():
            patch.setenv(variable, value)
        assert main(["build", "--corpus", str(corpus), "--workers", "1", "-q"]) == 0
    return corpus


@pytest.fixture
def corpus(built: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "corpus"))


@pytest.fixture
def requests(tmp_path: Path) -> str:
    """Requests for 50 documents."""
    named = [request("url", url_of(number).replace("http:", "https:")) for number in _REMOVED]
    return write_requests(tmp_path / "requests.jsonl", *named)


@pytest.fixture(scope="module")
def removed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus after the removal of 50 documents."""
    folder = tmp_path_factory.mktemp("removed")
    corpus = Path(shutil.copytree(built, folder / "corpus"))
    named = [request("url", url_of(number).replace("http:", "https:")) for number in _REMOVED]
    assert remove(corpus, write_requests(folder / "requests.jsonl", *named), "--pages") == 0
    return corpus


def _rows(corpus: Path, stage: str, noun: str) -> dict[str, dict[str, Any]]:
    key = "url" if stage in ("scrape", "fetch") else "id"
    files = sorted((corpus / stage).glob(f"{noun}-*.parquet"))
    return {row[key]: row for file in files for row in pq.read_table(file).to_pylist()}


def test_no_8_gram_of_removed_documents_remains(built: Path, removed: Path) -> None:
    own = ngrams([text_of(number).lower().split() for number in _REMOVED])
    own -= ngrams([text_of(number).lower().split() for number in range(96) if number not in _REMOVED])
    assert len(own) > 4000
    searched = [path for path in removed.rglob("*") if path.is_file() and "dumps" not in path.parts]
    assert {path.suffix for path in searched} >= {".parquet", ".gz", ".bin", ".json", ".html", ".jsonl"}
    remaining = {str(path.relative_to(removed)): ngrams(words_of(path)) & own for path in searched}
    remaining.pop("sentences.jsonl")  # of the user
    assert {path: len(found) for path, found in remaining.items() if found} == {}
    before = [path for path in built.rglob("*") if path.is_file() and "dumps" not in path.parts]
    quoting = {path.relative_to(built).parts[0] for path in before if ngrams(words_of(path)) & own}
    assert quoting >= {"fetch", "extract", "filter", "dedup", "remove-wikipedia", "train-bpe", "tokenize"}


def test_other_documents_are_unchanged(built: Path, removed: Path) -> None:
    gone = {url_of(number) for number in _REMOVED}
    for stage, noun in (("scrape", "links"), ("fetch", "pages"), *((stage, "documents") for stage in _DOCUMENT_STAGES)):
        before, after = _rows(built, stage, noun), _rows(removed, stage, noun)
        assert after == {key: row for key, row in before.items() if row["url"] not in gone}, stage
    ids = {id_of_url(url) for url in gone}
    for name in ("train-00000", "train-00001", "held-out-00000"):
        old, new = (np.fromfile(folder / "tokenize" / f"{name}.bin", "<u2") for folder in (built, removed))
        expected, end = old.copy(), json.loads((removed / "tokenize/tokens.json").read_text())["end_of_text"]
        tables = [pq.read_table(folder / f"tokenize/{name}-documents.parquet") for folder in (built, removed)]
        for row, kept in zip(*(table.to_pylist() for table in tables), strict=True):
            if row["id"] in ids:
                expected[row["offset"] : row["offset"] + row["tokens"]] = end
                assert kept == {**row, "id": "", "url": None}
            else:
                assert kept == row
        assert np.array_equal(new, expected)
        assert not np.array_equal(new, old)
    assert (built / "pretrain/model.safetensors").read_bytes() == (removed / "pretrain/model.safetensors").read_bytes()


def test_only_what_reads_a_changed_stage_is_stale(built: Path, removed: Path, corpus: Path) -> None:
    before, after = ({stage.stage: stage.state for stage in status(str(path), False)} for path in (built, removed))
    assert before == dict.fromkeys(STAGES, "done")
    assert after == before | {"overlap-index": "stale", "overlap-report": "-", "search": "-"}
    toml = (corpus / "webtext.toml").read_text()
    (corpus / "webtext.toml").write_text(toml.replace("shard_tokens = 9000", "shard_tokens = 8000"))
    _, training = decide_build(str(corpus), ["tokenize", "pretrain"], RunOptions())
    assert (training.action, training.reason) == (
        "refuse",
        "its input 'tokens' has changed, since tokenize will change (needs --overwrite)",
    )


def test_the_funnel_is_whole_and_all_is_current(built: Path, removed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--corpus", str(removed), "--verify"]) == 0
    manifests = {stage: read_manifest(str(removed / stage)) for stage in STAGES if stage not in _DELETED}
    chain = ["scrape", "fetch", *_DOCUMENT_STAGES, "tokenize"]
    for first, second in itertools.pairwise(chain):
        assert manifests[first].records_out == manifests[second].records_in, second
    for stage in chain:
        manifests[stage].check_records()
        dropped = Counter(row["reason"] for row in _rows(removed, stage, "dropped").values())
        assert stage == "scrape" or dict(dropped) == manifests[stage].dropped
    assert manifests["scrape"].records_in == read_manifest(str(built / "scrape")).records_in
    assert manifests["scrape"].dropped["removed"] == 50
    tokens = json.loads((removed / "tokenize/tokens.json").read_text())
    assert sum(split["documents"] for split in tokens["totals"].values()) == manifests["tokenize"].records_out
    capsys.readouterr()
    assert main(["build", "--corpus", str(removed), "--dry-run", "--json"]) == 0
    actions = {row["stage"]: row["action"] for row in json.loads(capsys.readouterr().out)["stages"]}
    assert {stage for stage, action in actions.items() if action != "keep"} == {"overlap-index", *_DELETED}


def test_the_report_has_counts_ids_and_training_steps(built: Path, removed: Path) -> None:
    report = json.loads((removed / "removals/0001.json").read_text())
    assert report["documents"] == 50
    assert [row["ids"] for row in report["requests"]] == [[id_of_url(url_of(number))] for number in _REMOVED]
    assert report["removed"]["scrape"] == report["removed"]["fetch"] == 50
    assert "Author" not in json.dumps(report)
    tokens = open_tokens(str(built / "tokenize"))
    order, context = BlockOrder(tokens.train.blocks(16), 0), 16
    batches = [order.numbers(4 * step, 4 * step + 4) for step in range(30)]
    start, places = 0, dict[str, set[int]]()
    for shard, name in zip(tokens.train.shards, tokens.train.tables, strict=True):
        table = pq.read_table(built / "tokenize" / f"{name.removesuffix('.bin')}-documents.parquet")
        for row in table.to_pylist():
            first = start + row["offset"]
            places.setdefault(row["id"], set()).update(range(first, first + row["tokens"]))
        start += len(shard)
    for row in report["requests"]:
        positions = places.get(row["ids"][0], set())
        steps = [
            step
            for step, batch in enumerate(batches, 1)
            if any(positions & {*range(block * context, block * context + context + 1)} for block in batch)
        ]
        assert row["steps"] == steps
    assert any(row["steps"] for row in report["requests"])


@pytest.mark.parametrize("kills", [3, pytest.param(20, marks=pytest.mark.slow)])
def test_killed_removals_have_the_same_end(
    built: Path, removed: Path, requests: str, tmp_path: Path, kills: int
) -> None:
    expected = contents(removed)
    whole = Path(shutil.copytree(built, tmp_path / "whole"))
    process = start_process(remove_killed, str(whole), requests, 10**6)
    process.join()
    [mark] = whole.glob("calls-*")
    events = int(mark.name.partition("-")[2])
    mark.unlink()
    assert contents(whole) == expected
    for number in range(kills):
        corpus = Path(shutil.copytree(built, tmp_path / f"killed-{number}"))
        process = start_process(remove_killed, str(corpus), requests, 1 + number * events // kills)
        process.join()
        assert process.exitcode == -9
        is_pending = (corpus / "removals/pending.json").exists()
        if is_pending:
            assert main(["build", "--corpus", str(corpus), "-q"]) == 1
        is_done = (corpus / "removals/0001.json").exists() and not is_pending
        assert is_done or remove(corpus, *([] if is_pending else [requests, "--pages"])) == 0
        assert contents(corpus) == expected, number
        shutil.rmtree(corpus)


def test_two_workers_write_the_same_bytes(removed: Path, corpus: Path, requests: str) -> None:
    assert remove(corpus, requests, "--pages", "--workers", "2") == 0
    assert contents(corpus) == contents(removed)


def test_an_interrupted_removal_stops_stages(
    corpus: Path, requests: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("pipelines.corpus.removal.replace_result", stop)
        assert remove(corpus, requests) == 130
    capsys.readouterr()
    for command in (["dedup"], ["build", "--dry-run"]):
        assert main([*command, "--corpus", str(corpus)]) == 1
        advice = f"complete it with `webtext remove --corpus {corpus}`"
        assert capsys.readouterr().err == f"error: {corpus}: a removal of documents was interrupted; {advice}\n"
    before = contents(corpus)
    for command in (["remove", "--dry-run"], ["remove", requests, "--dry-run"], ["status"], ["status", "--verify"]):
        assert main([*command, "--corpus", str(corpus)]) == 1
        assert "a removal of documents was interrupted; complete it with" in capsys.readouterr().err
    assert contents(corpus) == before
    other = write_requests(tmp_path / "other.jsonl", request("domain", "alpha.com"))
    assert remove(corpus, other) == 1
    assert "another removal was interrupted; first complete it" in capsys.readouterr().err
    assert remove(corpus) == 0
    assert main(["dedup", "--corpus", str(corpus), "-q"]) == 0
    capsys.readouterr()
    assert remove(corpus) == 2
    assert "no removal was interrupted; name a file of requests" in capsys.readouterr().err


def test_what_was_removed_does_not_come_back(
    corpus: Path, web: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_processes: None
) -> None:
    for variable, value in web.items():
        monkeypatch.setenv(variable, value)
    named = [
        request("url", url_of(8)),
        request("author", "u/AUTHOR3"),
        request("url_prefix", "http://delta.net/page-1"),
    ]
    named.append(request("subreddit", "nothing"))
    assert remove(corpus, write_requests(tmp_path / "requests.jsonl", *named)) == 0
    gone = {
        url_of(number)
        for number in range(96)
        if number == 8 or number % 7 == 3 or url_of(number).startswith("http://delta.net/page-1")
    }
    assert {url_of(number) for number in range(96)} - _rows(corpus, "scrape", "links").keys() == gone
    # The next month links to removed pages again.
    rows = [submission(number, id=f"e{number:04d}", created_utc=1454284800 + number) for number in range(30)]
    write_dump(corpus / "dumps" / "RS_2016-02.zst", rows)
    build = ["build", "--corpus", str(corpus), "--workers", "1", "-q", "--to", "remove-wikipedia"]
    assert main(build) == 0
    for stage, noun in (("scrape", "links"), ("fetch", "pages"), ("extract", "documents")):
        assert not _rows(corpus, stage, noun).keys() & {*gone, *map(id_of_url, gone)}, stage
    links = _rows(corpus, "scrape", "links")
    assert len(links[url_of(1)]["submission_ids"]) == 2
    assert read_manifest(str(corpus / "scrape")).dropped["removed"] == len(gone)
    shutil.rmtree(corpus / "extract")
    assert main(["extract", "--corpus", str(corpus), "-q", "--workers", "1"]) == 0
    assert not _rows(corpus, "extract", "documents").keys() & {*map(id_of_url, gone)}


def test_a_request_for_a_text_names_its_document(corpus: Path, tmp_path: Path, web: dict[str, str]) -> None:
    import hashlib

    row = next(row for row in _rows(corpus, "extract", "documents").values() if row["url"] == url_of(13))
    sha256 = hashlib.sha256(row["text"].encode()).hexdigest().upper()
    assert remove(corpus, write_requests(tmp_path / "requests.jsonl", request("text_sha256", sha256))) == 0
    assert url_of(13) not in _rows(corpus, "scrape", "links")
    lines = [json.loads(line) for line in (corpus / "removals.jsonl").read_text().splitlines()]
    assert [(line["kind"], line["value"]) for line in lines] == [("text_sha256", sha256), ("id", row["id"])]


def test_spikes_lose_the_text(corpus: Path, tmp_path: Path) -> None:
    pieces = [{"id": id_of_url(url_of(number)), "url": url_of(number), "text": text_of(number)} for number in (4, 5)]
    (corpus / "pretrain/spikes").mkdir(exist_ok=True)
    spike = corpus / "pretrain/spikes/step-0000003.json"
    spike.write_text(json.dumps({"blocks": [{"number": 1, "pieces": pieces}]}))
    assert remove(corpus, write_requests(tmp_path / "requests.jsonl", request("url", url_of(4)))) == 0
    [block] = json.loads(spike.read_text())["blocks"]
    assert block["pieces"] == [pieces[1]]


def test_rebuild_makes_token_shards_without_gaps(corpus: Path, tmp_path: Path, warm_processes: None) -> None:
    requests = write_requests(tmp_path / "requests.jsonl", request("domain", "beta.org"))
    assert remove(corpus, requests, "--rebuild") == 0
    table = pq.read_table(corpus / "tokenize/train-00000-documents.parquet")
    assert "" not in table["id"].to_pylist()
    assert "beta" not in " ".join(table["url"].to_pylist())
    index = json.loads((corpus / "overlap-index/index.json").read_text())
    assert index["documents"] == read_manifest(str(corpus / "remove-wikipedia")).records_out
    assert (corpus / "overlap-report/report.json").exists()
    words = SearchIndex.open(str(corpus))
    found = words.search("*", limit=1000)
    assert found.count == len(found.rows) == index["documents"]
    assert "beta.org" not in {row.domain for row in found.rows}
    texts = [text_of(number).lower().split() for number in range(96)]
    others = ngrams([text for number, text in enumerate(texts) if number % 4 != 1])
    assert any(words.find_phrase(ngram, 0)[0] for ngram in others)
    assert not any(words.find_phrase(ngram, 0)[0] for ngram in ngrams(texts[1::4]) - others)
    assert not any(words.search(f'title:"page {number}"').count for number in range(1, 96, 4))
    report = json.loads((corpus / "removals/0001.json").read_text())
    assert {note.partition(":")[0] for note in report["notes"]} == {"fetch", "dedup", "train-bpe", "pretrain"}


def test_dry_run_changes_nothing(corpus: Path, built: Path, requests: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert remove(corpus, requests, "--dry-run") == 0
    assert capsys.readouterr().out.endswith("50 documents to remove\n")
    assert contents(corpus) == contents(built)
    assert not (corpus / "removals").exists()


def test_an_unfinished_stage_is_refused(corpus: Path, requests: str, capsys: pytest.CaptureFixture[str]) -> None:
    os.makedirs(corpus / "dedup/_next")
    assert remove(corpus, requests) == 1
    assert "dedup: has an unfinished run, or no manifest.json; finish or delete it" in capsys.readouterr().err
    os.rmdir(corpus / "dedup/_next")
    (corpus / "dedup/manifest.json").unlink()
    before = contents(corpus)
    assert remove(corpus, requests) == 1
    assert "dedup: has an unfinished run, or no manifest.json; finish or delete it" in capsys.readouterr().err
    assert contents(corpus) == before


def test_pages_of_an_earlier_removal_are_blanked(
    built: Path, removed: Path, corpus: Path, requests: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_requests(tmp_path / "other.jsonl", request("url", url_of(0)))
    warcs = [path.relative_to(built) for path in sorted(built.glob("fetch/*.warc.gz"))]
    assert remove(corpus, requests) == 0
    assert "fetch: the WARC files still contain the pages; the same command with --pages" in capsys.readouterr().out
    assert [(corpus / path).read_bytes() for path in warcs] == [(built / path).read_bytes() for path in warcs]
    assert remove(corpus, other, "--pages") == 0
    assert "fetch: pages of 1 document removed before are blank now" in capsys.readouterr().out
    assert [(corpus / path).read_bytes() for path in warcs] != [(removed / path).read_bytes() for path in warcs]
    assert remove(corpus, requests, "--pages") == 0
    assert "fetch: pages of 50 documents removed before are blank now" in capsys.readouterr().out
    assert [(corpus / path).read_bytes() for path in warcs] == [(removed / path).read_bytes() for path in warcs]
    for stage in STAGES[:-2]:  # the index and the report are of the corpus before the removal
        manifests = [json.loads((folder / stage / "manifest.json").read_text()) for folder in (corpus, removed)]
        assert manifests[0] == manifests[1], stage
    assert main(["build", "--corpus", str(corpus), "--to", "pretrain", "-q"]) == 0


def test_explain_names_the_removal(removed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = url_of(_REMOVED[0])
    assert main(["explain", url, "--corpus", str(removed)]) == 1
    out = capsys.readouterr().out
    assert "scrape: DROPPED, removed" in out
    assert "the owner asks" in out
    assert "removals/0001.json" in out
    assert main(["scrape", "--explain", url, "--corpus", str(removed)]) == 0
    assert "note: removals.jsonl drops this URL from the corpus" in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "value"), [("site", "a.org"), ("url", "modules.pydoc.example/x"), ("domain", "com")])
def test_a_bad_request_names_what_is_expected(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, value: str
) -> None:
    assert remove(built, write_requests(tmp_path / "requests.jsonl", request(kind, value)), "--dry-run") == 1
    expected = "expected kind (url, url_prefix, domain, id, text_sha256, author, subreddit), value (such as "
    assert expected in capsys.readouterr().err


def test_a_corpus_of_a_list_of_urls(
    web: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warm_processes: None
) -> None:
    for variable, value in web.items():
        monkeypatch.setenv(variable, value)
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (tmp_path / "urls.txt").write_text("".join(url_of(number) + "\n" for number in range(8)))
    (corpus / "webtext.toml").write_text(f'[fetch]\ninput = ["{tmp_path / "urls.txt"}"]\nper_host_delay = 0.0\n')
    write_requests(corpus / "removals.jsonl", request("domain", "beta.org"))
    run = ["--corpus", str(corpus), "-q", "--workers", "1"]
    assert main(["fetch", *run]) == 0
    manifest = read_manifest(str(corpus / "fetch"))
    assert (manifest.records_out, manifest.dropped) == (6, {"removed": 2})
    assert main(["extract", *run]) == 0
    assert remove(corpus, write_requests(tmp_path / "requests.jsonl", request("url", url_of(2))), "--pages") == 0
    manifests = [read_manifest(str(corpus / stage)) for stage in ("fetch", "extract")]
    assert [(one.records_in, one.records_out, one.dropped) for one in manifests] == [(8, 5, {"removed": 3}), (5, 5, {})]
    for stage in ("fetch", "extract"):
        assert main([stage, *run]) == 0
    # The WARC file read as a file of its own: the page is blank, others are dropped by the list.
    requests = write_requests(tmp_path / "more.jsonl", request("url_prefix", "http://delta.net/"))
    assert remove(corpus, requests) == 0
    shutil.rmtree(corpus / "extract")
    assert main(["extract", str(corpus / "fetch/pages-00000.warc.gz"), "-o", str(corpus / "extract"), "-q"]) == 0
    dropped = _rows(corpus, "extract", "dropped")
    removed_urls = ["http://delta.net/robots.txt", url_of(3), url_of(7)]
    assert {id for id, row in dropped.items() if row["reason"] == "removed"} == {*map(id_of_url, removed_urls)}
    assert id_of_url(url_of(2)) not in dropped
    assert not _rows(corpus, "extract", "documents").keys() & {id_of_url(url_of(number)) for number in (1, 2, 3, 5, 7)}
    requests = write_requests(tmp_path / "last.jsonl", request("id", id_of_url(url_of(0))))
    assert remove(corpus, requests) == 0
    assert read_manifest(str(corpus / "extract")).dropped["removed"] == 4


def test_a_stage_does_not_start_while_documents_are_searched(
    corpus: Path, requests: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first run of a stage, whose folder the removal could not lock."""
    shutil.rmtree(corpus / "train-bpe")
    codes = []

    def search(*arguments: Any) -> Any:
        codes.append(main(["train-bpe", "--corpus", str(corpus), "-q", "--overwrite"]))
        return _find_documents(*arguments)

    monkeypatch.setattr("pipelines.corpus.removed_files.find_documents", search)
    assert remove(corpus, requests, "--workers", "1") == 0
    assert {*codes} == {1}
    assert not (corpus / "train-bpe/manifest.json").exists()
    monkeypatch.undo()
    assert main(["train-bpe", "--corpus", str(corpus), "-q"]) == 0
