"""`webtext filter --redact`: texts, spans, counts and the report, and what later stages do with spans."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_type_hints

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filter_run import GERMAN, PROSE, options, run

from pipelines.algorithms.quality.redaction import KINDS
from pipelines.engine.config import option_fields, spec_of
from pipelines.engine.executor import make_executor
from pipelines.engine.run import RunOptions
from pipelines.records.inputs import open_configured
from pipelines.stages.dedup.config import DedupConfig
from pipelines.stages.dedup.stage import dedup
from pipelines.stages.filter.config import FilterConfig
from pipelines.stages.filter.stage import DocumentFilter, explain, sample_funnel
from pipelines.stages.filter.stage import filter as filter_documents
from webtext_cli.main import main

EMAIL, PHONE = "email@example.com", "+1-202-555-0100"
CONTACT = "Write to john@host.org or ann@host.org, or call 202-456-1111."


@pytest.fixture
def documents(tmp_path: Path) -> str:
    path = tmp_path / "docs.parquet"
    rows = [
        {"id": "both", "text": f"{PROSE}\n{CONTACT}", "title": "Ask john@host.org", "author": "a@host.org", "words": 9},
        {"id": "none", "text": GERMAN, "title": None, "author": None, "words": 68},
        {"id": "short", "text": "a@host.org", "title": "202-456-1111", "author": "", "words": 1},
    ]
    pq.write_table(pa.Table.from_pylist(rows), path)
    return str(path)


def manifest_counts(output: Path) -> dict[str, int]:
    return json.loads((output / "manifest.json").read_text())["counts"]


def test_texts_titles_and_authors_are_redacted_and_the_placeholders_counted(documents: str, tmp_path: Path) -> None:
    kept, dropped = run(documents, tmp_path, redact=("email", "phone"))
    both = kept["both"]
    assert both["text"] == f"{PROSE}\nWrite to {EMAIL} or {EMAIL}, or call {PHONE}."
    assert (both["title"], both["author"]) == (f"Ask {EMAIL}", EMAIL)
    assert [span["kind"] for span in both["redactions"]] == ["email", "email", "phone"]
    assert [both["text"][span["start"] : span["end"]] for span in both["redactions"]] == [EMAIL, EMAIL, PHONE]
    assert both["words"] == len(both["text"].split())
    assert kept["none"]["redactions"] == []
    assert dropped == {"short": "too_short: characters 10 is below 200"}
    assert manifest_counts(tmp_path / "filter") == {"removed_lines": 0, "redacted_email": 2, "redacted_phone": 1}
    report = json.loads((tmp_path / "filter" / "report.json").read_text())
    assert report["redactions"] == {"email": 2, "phone": 1}
    page = (tmp_path / "filter" / "report.html").read_text()
    assert "Placeholders" in page


def test_without_the_option_nothing_is_redacted(documents: str, tmp_path: Path) -> None:
    kept, _ = run(documents, tmp_path)
    assert "redactions" not in kept["both"]
    assert kept["both"]["text"].endswith(CONTACT)
    assert manifest_counts(tmp_path / "filter") == {"removed_lines": 0}


def test_decisions_do_not_depend_on_placeholders(tmp_path: Path) -> None:
    text = f"{PROSE} a@b.org"[-200:]  # exactly as long as it must be; its placeholder is longer
    pq.write_table(pa.table({"id": ["a"], "text": [text]}), tmp_path / "docs.parquet")
    kept, _ = run(str(tmp_path / "docs.parquet"), tmp_path, redact=("email",), set=("too_short=200",))
    assert kept["a"]["text"].endswith(EMAIL)


def test_no_file_of_the_result_has_what_was_redacted(tmp_path: Path) -> None:
    # Near the threshold, so that the report shows their beginnings, one of them cut within an address.
    texts = [f"{'x' * (start - 200)} john@secret-host.org {PROSE}"[:205] for start in range(200, 360, 7)]
    texts += [f"{PROSE[:290]} john@secret-host.org {PROSE}"]
    rows = {"id": [str(number) for number in range(len(texts))], "text": texts}
    pq.write_table(pa.table(rows), tmp_path / "docs.parquet")
    run(str(tmp_path / "docs.parquet"), tmp_path, redact=KINDS, set=("too_short=210",))
    pages = [(tmp_path / "filter" / name).read_text() for name in ("report.html", "report.json", "report-00000.json")]
    assert all("email@exam" in page and "john" not in page for page in pages)


def test_redacting_a_result_again_leaves_its_texts(documents: str, tmp_path: Path) -> None:
    run(documents, tmp_path, redact=("email",))
    first = tmp_path / "filter"
    again, _ = run(str(first), tmp_path / "again", redact=("email",))
    assert again["both"]["text"] == pq.read_table(first / "documents-00000.parquet")["text"][0].as_py()
    assert again["both"]["redactions"] == []
    assert manifest_counts(tmp_path / "again" / "filter")["redacted_email"] == 0


def test_the_bytes_do_not_depend_on_workers_and_order_of_kinds(documents: str, tmp_path: Path) -> None:
    results = []
    for workers, kinds in ((1, ("email", "ip", "phone")), (2, ("phone", "ip", "email", "ip"))):
        output, settings = tmp_path / str(workers), RunOptions(executor=make_executor(workers), serial_if_tiny=False)
        filter_documents(FilterConfig(redact=kinds), documents=documents, output=str(output), options=settings)
        results.append({path.name: path.read_bytes() for path in sorted(output.iterdir()) if path.is_file()})
    assert results[0] == results[1]


@pytest.mark.parametrize("config", [{"profile": ("c4",), "set": ("too_few_sentences=off",)}, {}])
def test_spans_of_a_text_that_is_edited_later_become_null(
    documents: str, tmp_path: Path, config: dict[str, Any]
) -> None:
    rows = pq.read_table(documents).to_pylist()
    rows[0]["text"] = f"Home | About us\n{rows[0]['text']}"
    pq.write_table(pa.Table.from_pylist(rows), documents)
    run(documents, tmp_path, redact=("email",))
    later, _ = run(str(tmp_path / "filter"), tmp_path / "later", **config)
    assert (later["both"]["redactions"] is None) == bool(config)
    assert later["none"]["redactions"] == []


def test_spans_reach_later_stages(documents: str, tmp_path: Path) -> None:
    run(documents, tmp_path, redact=("email",))
    dedup(DedupConfig(), documents=str(tmp_path / "filter"), output=str(tmp_path / "dedup"), options=options())
    tables = [pq.read_table(tmp_path / name / "documents-00000.parquet") for name in ("filter", "dedup")]
    assert tables[0]["redactions"].equals(tables[1]["redactions"])


def test_explanation_and_sample_show_placeholders(
    documents: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    config = FilterConfig(redact=("email", "ip"))
    source, document_filter = open_configured(documents, config, options()), DocumentFilter.open(config, None, None)
    assert explain(document_filter, source, "short")["measured"] == {"removed_lines": 0, "redactions": []}
    assert sample_funnel(document_filter, source, 3)["redacted"] == {"email": 2, "ip": 0}
    monkeypatch.chdir(tmp_path)
    assert main(["filter", documents, "--redact", "ip,email", "--dry-run"]) == 0
    assert "email: 2 placeholders" in capsys.readouterr().out
    assert main(["filter", documents, "--redact", "email", "--redact", "ip", "--explain", "both"]) == 0
    start = len(PROSE) + len("\nWrite to ")
    assert f"redactions: email {start} {start + len(EMAIL)}, email" in capsys.readouterr().out


def test_a_wrong_kind_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["filter", "docs.parquet", "--redact", "email,phones", "-o", "out"]) == 2
    assert "phones: is not one of email, ip, phone; did you mean" in capsys.readouterr().err
    (tmp_path / "webtext.toml").write_text('[filter]\nredact = ["mail"]\n')
    assert main(["filter", "docs.parquet", "-o", "out"]) == 2
    assert "redact = 'mail' is not one of email, ip, phone" in capsys.readouterr().err


def test_the_choices_are_the_kinds() -> None:
    [field] = [field for field in option_fields(FilterConfig) if field.name == "redact"]
    assert spec_of(field).choices == KINDS
    assert get_type_hints(FilterConfig)["redact"] == tuple[str, ...]
