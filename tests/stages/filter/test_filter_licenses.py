"""`webtext filter --license`: which documents are kept, and inputs that have no licenses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filter_run import PROSE, run

from pipelines.errors import InputError, UsageError
from webtext_cli.main import main

NAMES = [
    "cc-by-4.0", "cc-by", "cc-by-3.0-us", "cc-by-sa-4.0", "cc-by-nc-4.0", "cc-by-nd-2.0", "cc0-1.0", "public-domain",
    "gfdl-1.3", "mit", "gpl-3.0", None,
]  # fmt: skip


@pytest.fixture
def documents(tmp_path: Path) -> str:
    rows = [{"id": str(name), "text": PROSE, "license": name} for name in NAMES]
    (tmp_path / "documents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / "documents.jsonl")


@pytest.mark.parametrize(
    ("licenses", "kept"),
    [
        (["cc-by-4.0"], ["cc-by-4.0"]),
        (["cc-by"], ["cc-by-4.0", "cc-by", "cc-by-3.0-us"]),
        (["CC-BY-NC,cc0", "gfdl"], ["cc-by-nc-4.0", "cc0-1.0", "gfdl-1.3"]),
        (["redistributable"], [*NAMES[:4], "cc0-1.0", "public-domain", "gfdl-1.3", "mit"]),
        (["redistributable, gpl,"], [*NAMES[:4], *NAMES[6:11]]),
        (["cc-by-nd,mit-0"], ["cc-by-nd-2.0"]),
        ([], [str(name) for name in NAMES]),
    ],
)
def test_documents_under_the_named_licenses_are_kept(
    documents: str, tmp_path: Path, licenses: list[str], kept: list[str]
) -> None:
    found, dropped = run(documents, tmp_path, profile=("none",), license=tuple(licenses))
    assert [*found] == kept
    assert dropped == {str(name): f"license: {name or 'unknown'}" for name in NAMES if str(name) not in kept}


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("foo", "use a name such as cc-by-4.0 or cc-by, or redistributable"),
        ("ccby", "did you mean cc-by?"),
        ("cc by", "did you mean cc-by?"),
        ("redistributible", "did you mean redistributable?"),
        ("cc-by.4.0|gpl", "use a name"),
    ],
)
def test_an_unknown_license_is_refused(documents: str, tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(UsageError, match=re.escape(f"--license {name}: unknown license; {hint}")):
        run(documents, tmp_path, license=("mit", f"cc0, {name}"))
    assert not (tmp_path / "out").exists()


def test_the_license_of_one_document_is_explained(documents: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["filter", documents, "--profile", "none", "--license", "mit", "--explain", "gpl-3.0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[-1]) == ("id   gpl-3.0", "dropped for license (gpl-3.0)")
    assert not any("threshold" in line for line in lines)


def test_another_rule_is_the_reason_if_it_drops_a_document_first(tmp_path: Path) -> None:
    rows = [{"id": "a", "text": "short"}, {"id": "b", "text": PROSE, "license": "cc0-1.0"}]
    (tmp_path / "documents.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    _, dropped = run(str(tmp_path / "documents.jsonl"), tmp_path, license=("cc0",))
    assert [*dropped] == ["a"]
    assert dropped["a"].startswith("too_short")


@pytest.mark.parametrize("columns", [{"text": [PROSE]}, {"text": [PROSE], "license": [["cc-by-4.0"]]}])
def test_an_input_without_licenses_is_refused(tmp_path: Path, columns: dict[str, Any]) -> None:
    pq.write_table(pa.table(columns), tmp_path / "documents.parquet")
    with pytest.raises(InputError, match="--license: the input has no texts in a column license"):
        run(str(tmp_path / "documents.parquet"), tmp_path, license=("cc-by",))
