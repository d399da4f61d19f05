"""Lists of URLs in every format, and rows that contain none."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import tracemalloc
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from compressed_files import write_compressed
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.errors import DamagedFileError, InputError
from pipelines.records.url_lists import BadRow, UrlListError, read_urls


def _read(path: Path, column: str = "url") -> tuple[list[str | None], list[tuple[int, str, str]]]:
    """Return the URLs of a list, and its bad rows as line, reason and text."""
    rows = list(read_urls(str(path), column))
    urls = [row for row in rows if not isinstance(row, BadRow)]
    bad = [row for row in rows if isinstance(row, BadRow)]
    return urls, [(row.line, row.reason, row.content.decode(errors="replace").rstrip("\r\n")) for row in bad]


def _read_until(error: type[InputError], path: Path) -> tuple[list[str | BadRow | None], str]:
    """Return the rows before an error, and its message."""
    rows: list[str | BadRow | None] = []
    with pytest.raises(error) as raised:
        rows.extend(read_urls(str(path)))
    return rows, str(raised.value)


@pytest.mark.parametrize("suffix", ["", ".zst", ".xz", ".bz2", ".gz"])
def test_one_url_per_line(tmp_path: Path, suffix: str) -> None:
    text = b"\xef\xbb\xbfhttp://a.com/1\r\n# a comment\n\n  http://b.com/\xc3\xa9  \n{not json\nhttp://\xff.com/\nhttp://c.com/"
    urls, rejects = _read(write_compressed(tmp_path, f"list.txt{suffix}", text))
    assert urls == ["http://a.com/1", "http://b.com/é", "{not json", "http://c.com/"]
    assert rejects == [(6, "not_utf8", "http://\ufffd.com/")]


def test_json_lines_and_plain_lines(tmp_path: Path) -> None:
    lines = [
        '{"url": "http://a.com/", "score": 4}',
        '{"url": null}',
        '{"url": "http://b.com/\\ud83d"}',
        "http://plain.com/",
        "{broken",
        '{"link": "http://c.com/"}',
        '{"url": 5}',
        '{"url": {"deep": "x"}}',
        "[" * 100000,
        "{" + '"a":[' * 100000,
    ]
    urls, rejects = _read(write_compressed(tmp_path, "list.jsonl.zst", "\n".join(lines)))
    assert urls == ["http://a.com/", None, "http://b.com/\ufffd", "http://plain.com/"]
    reasons = [(5, "not_json"), (6, "no_field"), (7, "not_text"), (8, "not_text"), (9, "too_long"), (10, "not_json")]
    assert [(line, reason) for line, reason, _ in rejects] == reasons


def test_nested_fields_and_field_names_with_a_dot(tmp_path: Path) -> None:
    records = [{"meta": {"url": "http://a.com/"}}, {"meta.url": "http://b.com/", "meta": 5}, {"meta": {}}, {"meta": []}]
    dotted = write_compressed(tmp_path, "dotted.jsonl", '{"page": {"meta.url": "http://c.com/"}}\n{"page": null}')
    assert _read(dotted, "page.meta.url") == (["http://c.com/"], [(2, "no_field", '{"page": null}')])
    with pytest.raises(InputError, match=r"no line has a field 'page\.url'; the first has: page"):
        _read(dotted, "page.url")
    path = write_compressed(tmp_path, "documents.jsonl", "\n".join(map(json.dumps, records)))
    urls, rejects = _read(path, "meta.url")
    assert urls == ["http://a.com/", "http://b.com/"]
    assert [(line, reason) for line, reason, _ in rejects] == [(3, "no_field"), (4, "no_field")]


def test_lists_of_openwebtext2(tmp_path: Path) -> None:
    meta = {
        "id": [1, 2],
        "score": [3, 4],
        "title": ["t", "u"],
        "subreddit": ["a", "b"],
        "created_utc": ["2017-01-01T00:00:00"],
    }
    lines = "".join(json.dumps({"text": f"http://a.com/{n}", "meta": meta}) + "\n" for n in range(3))
    path = write_compressed(tmp_path, "urls_0.jsonl.zst", lines)
    assert _read(path, "text") == ([f"http://a.com/{n}" for n in range(3)], [])
    with pytest.raises(InputError, match=r"no line has a field 'url'; the first has: text, meta"):
        _read(path)


def test_csv_written_by_the_standard_library(tmp_path: Path) -> None:
    text = io.StringIO()
    rows: list[list[Any]] = [
        ["id", " url ", "title"],
        [1, "http://a.com/?x=1,2", 'He said "no", twice\nand left'],
        [2, "", "é"],
        [3, " http://b.com/ ", ""],
    ]
    csv.writer(text).writerows(rows)
    assert _read(write_compressed(tmp_path, "list.csv.gz", "\ufeff" + text.getvalue())) == (
        ["http://a.com/?x=1,2", None, "http://b.com/"],
        [],
    )


def test_bad_csv_rows_do_not_affect_others(tmp_path: Path) -> None:
    text = (
        b"title,url\n"
        b"one,http://a.com/1\n"
        b'"a quote over two lines,http://a.com/2\n'
        b'three,"http://a.com/3\n'
        b'four,"http://a.com/4" or so\n'
        b"five\n"
        b"latin \xe9,http://a.com/6\n"
        b"seven,http://a.com/\xe97\n"
        b'eight,"http://a.com/8\nhttp://a.com/9"\n'
        b'"ten\n\nlines",http://a.com/10\n'
        b"eleven,http://a.com/11\n"
        b'"unclosed'
    )
    urls, rejects = _read(write_compressed(tmp_path, "list.csv", text))
    assert urls == [f"http://a.com/{n}" for n in (1, 6, 10, 11)]
    assert [(line, reason) for line, reason, _ in rejects] == [
        (3, "bad_csv"),
        (5, "bad_csv"),
        (6, "short_row"),
        (8, "not_utf8"),
        (9, "several_lines"),
        (15, "bad_csv"),
    ]
    assert rejects[0][2].startswith('"a quote over two lines,http://a.com/2')


def test_a_quote_that_is_never_closed_ends_the_list(tmp_path: Path) -> None:
    path = write_compressed(tmp_path, "list.csv", 'url,title\nhttp://a.com/1,x\n"http://a.com/2,x\nhttp://a.com/3,x\n')
    rows, message = _read_until(UrlListError, path)
    assert rows == ["http://a.com/1"]
    assert "the row that begins in line 3 cannot be read as CSV (" in message


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(st.text(st.sampled_from('ab",\n\r #{é'), max_size=6), st.text("ab:/.?é#{", max_size=6)), max_size=9
    )
)
def test_any_csv_of_the_standard_library_is_read_back(tmp_path_factory: Any, rows: list[tuple[str, str]]) -> None:
    folder = tmp_path_factory.mktemp("csv")
    text = io.StringIO()
    csv.writer(text).writerows([("title", "url"), *rows])
    urls, rejects = _read(write_compressed(folder, "list.csv", text.getvalue()))
    assert (urls, rejects) == ([url or None for _, url in rows], [])


def test_tsv_has_no_quotes(tmp_path: Path) -> None:
    text = b'url\ttitle\nhttp://a.com/\t"open\nhttp://b.com/\nhttp://\xff/\tx\n\tempty\r\n'
    urls, rejects = _read(write_compressed(tmp_path, "list.tsv.xz", text))
    assert urls == ["http://a.com/", "http://b.com/", None]
    assert rejects == [(4, "not_utf8", "http://\ufffd/\tx")]
    urls, rejects = _read(write_compressed(tmp_path, "titles.tsv", text), "title")
    assert urls == ['"open', "x", "empty"]
    assert [(line, reason) for line, reason, _ in rejects] == [(3, "short_row")]


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int32(), pa.string())]
)
def test_parquet_columns_of_text(tmp_path: Path, kind: pa.DataType) -> None:
    urls = [None if n % 50 == 7 else f"http://a.com/{n % 99}" for n in range(2500)]
    other = pa.array(range(2500))
    pq.write_table(
        pa.table({"other": other, "link": pa.array(urls, kind)}), tmp_path / "list.parquet", row_group_size=700
    )
    assert _read(tmp_path / "list.parquet", "link") == (urls, [])


def test_parquet_strings_that_are_not_utf8_are_bad_rows(tmp_path: Path) -> None:
    raw = pa.array([b"http://a.com/", b"http://\xff/", None] * 500, pa.binary())
    column = pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())
    pq.write_table(pa.table({"url": column}), tmp_path / "list.parquet")
    urls, rejects = _read(tmp_path / "list.parquet")
    assert (urls, len(rejects)) == (["http://a.com/", None] * 500, 500)
    pq.write_table(pa.table({"url": column.slice(0, 4)}), tmp_path / "few.parquet")
    assert _read(tmp_path / "few.parquet") == (
        ["http://a.com/", None, "http://a.com/"],
        [(2, "not_utf8", "http://\ufffd/")],
    )


def test_lists_are_streamed(tmp_path: Path) -> None:
    def peak_bytes(rows: int, name: str, line: str) -> int:
        path = write_compressed(tmp_path, f"{rows}-{name}", "url\n" * name.startswith("c") + line * rows)
        tracemalloc.start()
        for _ in read_urls(str(path)):
            pass
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    for name, line in (
        ("c.csv.gz", "http://example.com/page\n"),
        ("l.jsonl.gz", '{"url": "http://example.com/page"}\n'),
    ):
        assert peak_bytes(60_000, name, line) < peak_bytes(4_000, name, line) + 2_000_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"link\nhttp://a.com/\n", r"column .url.; it has: link"),
        ("a.tsv", b"a\tb\nx\ty\n", "a.tsv: has no column 'url'; it has: a, b"),
    ],
)  # fmt: skip
def test_missing_columns_are_reported(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    with pytest.raises(InputError, match=message):
        _read(write_compressed(tmp_path, name, content))


@pytest.mark.parametrize(("kind", "suffix"), [("txt", ".zst"), ("csv", ".xz"), ("tsv", ".bz2"), ("jsonl", ".gz")])
def test_a_truncated_list_is_read_up_to_the_damage(tmp_path: Path, kind: str, suffix: str) -> None:
    # Incompressible, so that truncation removes lines.
    urls = [f"http://a.com/{hashlib.sha512(b'%d' % n).hexdigest()}" for n in range(20_000)]
    form = '{{"url": "{}"}}\n' if kind == "jsonl" else "{}\n"
    text = "url\n" * (kind in ("csv", "tsv")) + "".join(form.format(url) for url in urls)
    path = write_compressed(tmp_path, f"list.{kind}{suffix}", text)
    size = path.stat().st_size * 9 // 10
    path.write_bytes(path.read_bytes()[:size])
    rows, message = _read_until(DamagedFileError, path)
    assert len(rows) > 8000
    assert rows == urls[: len(rows)]
    assert f"truncated or corrupt near compressed byte {size} (" in message


def test_a_damaged_parquet_file_is_read_up_to_the_damage(tmp_path: Path) -> None:
    path = tmp_path / "list.parquet"
    urls = [f"http://a.com/{n}" for n in range(9000)]
    pq.write_table(pa.table({"url": urls}), path, row_group_size=3000, compression="zstd", use_dictionary=False)
    start = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 300] = bytes(300)
    path.write_bytes(data)
    rows, message = _read_until(UrlListError, path)
    assert rows == urls[: len(rows)]
    assert 0 < len(rows) <= 3000
    assert message.startswith(f"{path}: cannot be read as Parquet (")


def test_blank_lines_before_the_header_are_skipped(tmp_path: Path) -> None:
    assert _read(write_compressed(tmp_path, "a.csv", "\nurl,x\nhttp://a.com/,1\n")) == (["http://a.com/"], [])
    assert _read(write_compressed(tmp_path, "header.csv", "url\n")) == ([], [])


def test_columns_that_are_not_text_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"url": [1, 2]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c.parquet: column 'url' has the type int64, not text"):
        _read(tmp_path / "c.parquet")
    with pytest.raises(InputError, match=r"c.parquet: has no column 'link'; it has: url"):
        _read(tmp_path / "c.parquet", "link")


def test_dumps_and_tables_are_not_lists_of_lines(tmp_path: Path) -> None:
    record = {"id": "a", "url": "http://a.com/", "score": 3, "created_utc": 1, "subreddit": "b", "is_self": False}
    for name, text, message in [
        (
            "RS_2017-11.json",
            json.dumps(record) + "\n",
            "is a dump of submissions, not a list of URLs; omit --source",
        ),
        ("list", "id,url\n1,http://a.com/\n", r"begins with the header of a table, .* end in \.csv"),
        ("list", 'title\t"url"\nx\thttp://a.com/\n', r"begins with the header of a table, .* end in \.tsv"),
    ]:
        path = write_compressed(tmp_path, name, text)
        with pytest.raises(InputError, match=message):
            _read(path)
