"""The targets that are one file: dumps, lists of URLs, archives, documents, benchmarks, scores, webtext.toml."""

from __future__ import annotations

import decimal
import functools
import io
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz_targets import DOCUMENTS, add, add_file, add_packed, gz
from fuzz_web import HTML

_TWO = {"id": ["a", "b"], "text": ["one", "two"]}


def parquets(changed: str, columns: dict[str, list[Any]]) -> list[bytes]:
    """Return valid tables: one with these columns, and others in which one column has another type."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def table(arrays: dict[str, Any]) -> bytes:
        stream = io.BytesIO()
        pq.write_table(pa.table(arrays), stream)
        return stream.getvalue()

    rows, texts = len(columns[changed]), list(map(str, columns[changed]))
    not_utf8 = pa.Array.from_buffers(pa.string(), 1, pa.array([b"caf\xe9"]).buffers())
    types = [pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())]
    others = [*(pa.array(texts).cast(kind) for kind in types), pa.concat_arrays([not_utf8] * rows), pa.nulls(rows)]
    values: list[Any] = [["x"], {"a": "x"}, 1.5, b"12", decimal.Decimal(10**30), 2**62, None, True]
    others += [pa.array([value] * rows) for value in values]
    others += [pa.nulls(rows, pa.string()), pa.array([2**62] * rows, pa.timestamp("us"))]
    return [table(columns), *(table(columns | {changed: other}) for other in others)]


def _add_parquet(name: str, read: Callable[[str], object], changed: str, columns: dict[str, list[Any]]) -> None:
    add_file(name, read, functools.partial(parquets, changed, columns))


def _scrape(path: str) -> None:
    from pipelines.engine.run import RunOptions
    from pipelines.stages.scrape.config import ScrapeConfig
    from pipelines.stages.scrape.stage import scrape

    output = f"{path}-scrape"
    shutil.rmtree(output, ignore_errors=True)
    config = ScrapeConfig(shards=1, skip_damaged=True, accept_fresh_scores=True)
    scrape(config, dumps=[path], output=output, options=RunOptions())


def _read_urls(path: str) -> None:
    from pipelines.records.url_lists import read_urls

    for row in read_urls(path):
        assert row is None or isinstance(row, str) or row.line


def _read_archive(path: str) -> None:
    from pipelines.records.inputs import InputFile
    from pipelines.stages.extract.pages import read_pages

    for page in read_pages(InputFile(path, os.path.getsize(path))):
        assert len(page.id) == 32


def _read_documents(path: str) -> None:
    from pipelines.records import inputs
    from pipelines.records.drops import Drops

    for shard in inputs.open_documents(path).shards:
        inputs.document_schema(shard)
        for batch in inputs.read_documents(shard, Drops()):
            batch.validate(full=True)


def _read_examples(path: str) -> None:
    from pipelines.benchmark_sets.benchmarks import parse_benchmarks, read_example_batches

    [benchmark] = parse_benchmarks([f"a={path}"])
    for example in ("auto", "line", "paragraph", "document"):
        for batch in read_example_batches(benchmark, example):
            batch.texts.validate(full=True)


def _read_layout(layout: str, path: str) -> None:
    from pipelines.evaluation.detokenizers import DETOKENIZERS
    from pipelines.evaluation.layouts import LAYOUTS, gold_number

    read, question = LAYOUTS[layout]
    for record in read([path]):
        if question is None:
            gold_number(record, "label", list("abcdef"))
        else:
            question(record, DETOKENIZERS["none"])


def _read_scores(path: str) -> None:
    from pipelines.benchmark_sets.benchmarks import Benchmark
    from pipelines.stages.overlap_report.scores import parse_scores, read_scores

    read_scores(parse_scores([f"a={path}"], [Benchmark("a", None, "text", ())]), {"a": 4})


def _add_up_counts(path: str) -> None:
    from pipelines.engine.run import RunOptions
    from pipelines.stages.train_bpe.config import TrainBpeConfig
    from pipelines.stages.train_bpe.stage import train_bpe

    output = f"{path}-bpe"
    shutil.rmtree(output, ignore_errors=True)
    config = TrainBpeConfig(vocab_size=260, count_only=True)
    train_bpe(config, documents=[], counts=[path], output=output, options=RunOptions())


def _read_config(path: str) -> None:
    from pipelines.build import CorpusConfig
    from pipelines.pipeline import PIPELINE

    config = CorpusConfig(os.path.dirname(path))
    config.stages(None, None)
    for stage in PIPELINE:
        config.options(stage.name, stage.config_type())
        config.files(stage.name)
        config.paths(stage.name)


def _config() -> list[bytes]:
    from pipelines.template import config_template

    # All options are commented out in the second, and set to their defaults or examples in the first.
    text = config_template()
    options = [line.removeprefix("# ") if " = " in line else line for line in text.splitlines()]
    return [text.encode(), "\n".join(options).encode()]


def warc_records() -> list[bytes]:
    """Return a warcinfo, a response, a request and a response."""
    block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + HTML
    head = (
        "WARC/1.1\r\nWARC-Type: {}\r\nWARC-Target-URI: http://a.example/{}\r\nWARC-Date: 2026-01-02T03:04:05Z\r\n"
        "WARC-Record-ID: <urn:uuid:00000000-0000-4000-8000-00000000000{}>\r\n"
        "Content-Type: application/http; msgtype=response\r\nContent-Length: {}\r\n\r\n"
    )
    kinds = enumerate(("warcinfo", "response", "request", "response"))
    return [head.format(kind, number, number, len(block)).encode() + block + b"\r\n\r\n" for number, kind in kinds]


def _arc_records() -> list[bytes]:
    block = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + HTML
    version = b"1 0 InternetArchive\nURL IP-address Archive-date Content-type Archive-length\n"
    start = b"filedesc://a.arc 0.0.0.0 20050614070159 text/plain %d\n" % len(version) + version + b"\n"
    head = b"http://a.example/%d 192.0.2.1 20050614070159 text/html %d\n"
    return [start, *(head % (number, len(block)) + block + b"\n" for number in range(3))]


_SUBMISSION = {
    "url": "http://a.example/x?y=1", "created_utc": 1400000000, "score": 9, "subreddit": "news", "title": "A title",
    "domain": "a.example", "is_self": False, "over_18": False, "crosspost_parent_list": None,
}  # fmt: skip
_DUMP = "".join(json.dumps({"id": f"a{number}", **_SUBMISSION}) + "\n" for number in range(12)).encode()
_POSTS = b'url,score,created,is_self,permalink\nhttp://a.example/,"5",2016-01-01,False,/r/news/comments/4x1/a/\n'
_CSV = b'url,title\nhttp://a.example/,"a ""b"", c"\n'
_SCORES = [b'{"accuracy": 1, "nll": 2.5}\n' * 4, b"".join(b'{"example": %d, "f": true}\n' % n for n in range(4))]

add_packed(
    "RS_2014-05", _scrape, _DUMP, "created_utc|crosspost_parent_list|url_overridden_by_dest|promoted|\\ud83d|1e400"
)
add_file("posts.csv", _scrape, lambda: [_POSTS], 'url|score|permalink|2016-01-01 10:00|1e400|True|"|""|,|\r|\n"')
_add_parquet(
    "posts.parquet", _scrape, "created", {"url": ["http://a.example/1"] * 3, "score": [5] * 3, "created": [9] * 3}
)
add_file("urls.txt", _read_urls, lambda: [b"http://a.example/1\n# comment\nhttp://b.example/\n"])
add_file("urls.csv", _read_urls, lambda: [_CSV], 'url|"|""|,|\r|\n"')
add_file("urls.tsv", _read_urls, lambda: [_CSV.replace(b",", b"\t")], 'url|\t|"')
add_packed("urls.jsonl", _read_urls, DOCUMENTS, '{"url":|"url": {|null')


def _show_documents(data: bytes, folder: Path) -> None:
    """Show the documents of a condition; it must not write."""
    from pipelines.corpus.documents import choose_documents
    from pipelines.corpus.tables import CorpusTables
    from pipelines.engine.run import RunOptions
    from pipelines.records.document_options import DocumentConfig

    folder.mkdir(exist_ok=True)
    (folder / "documents.jsonl").write_bytes(DOCUMENTS)
    os.chdir(folder)
    tables = CorpusTables(["documents.jsonl"], DocumentConfig(), RunOptions())
    choose_documents(tables, where=data.decode(errors="surrogateescape"))
    assert os.listdir() == ["documents.jsonl"]


_SQL_WORDS = (
    "COPY (SELECT 1) TO 'out'|WITH x AS (|FROM documents|UNION|ORDER BY 1|::INT|NULL| AND |(|)|;|--|/*|*/|$$|'|\""
)
add("condition.sql", _show_documents, lambda: [b"words > 2", b"id IN (FROM documents SELECT id) -- b"], _SQL_WORDS)
_add_parquet("urls.parquet", _read_urls, "url", {"url": ["http://a.example/1", "b", "c"]})
_RECORD_WORDS = (
    "WARC/1.0|Content-Length:|WARC-Type:|revisit|response|metadata|http://|HTTP/1.1|chunked|\r\n\r\n|filedesc://"
)
for _name, _records in (("pages.warc", warc_records), ("pages.arc", _arc_records)):
    add_file(_name, _read_archive, lambda records=_records: [b"".join(records())], _RECORD_WORDS)
    add_file(f"{_name}.gz", _read_archive, lambda records=_records: [b"".join(map(gz, records()))], _RECORD_WORDS)
add_packed("documents.jsonl", _read_documents, DOCUMENTS, '"text"|"id"|null|\\ud83d|{}|[]')
add_file("documents.txt", _read_documents, lambda: [b"One text.\nTwo lines.\n"])
add_file("documents.parquet", _read_documents, lambda: parquets("text", _TWO) + parquets("id", _TWO))
add_packed("examples.txt", _read_examples, b"One line.\n\nA second\none.\n")
add_file("examples.jsonl", _read_examples, lambda: [DOCUMENTS], '"text"|null|{}|[]')
_add_parquet("examples.parquet", _read_examples, "text", _TWO)
_LAYOUTS = {
    "winograd.txt": b"Ann hit it with it.\nit\nthe ball,the bat\nthe bat\n\nAnn saw [MASK] .\n[MASK]\n a , b \n b \n",
    "winograd.xml": b"<?xml version='1.0' encoding='ISO-8859-1'?><c><schema><text><txt1>A</txt1><pron> it </pron>"
    b"<txt2>.</txt2></text><answers><answer>b</answer><answer>c</answer></answers><correctAnswer> A. </correctAnswer>"
    b"</schema></c>",
    "winograd.json": b'[{"question_id":0,"substitution":"a b d","correctness":true},'
    b'{"question_id":0,"substitution":"a c d","correctness":false}]',
    "winograd.jsonl": b'{"text":"a it b","pronoun":"it","pronoun_loc":2,"options":["x","y"],"label":0}\n' * 2,
    "cbt.txt": b"".join(b"%d Text .\n" % number for number in range(1, 21)) + b"21 The XXXXX .\tdog\t\tcat|dog\n",
    "cbt.jsonl": b'{"sentences":["Text ."],"question":"The XXXXX .","answer":"dog","options":["cat","dog"]}\n',
    "trec.label": b"NUM:dist How \xf0far ?\nHUM:ind Who ?\n",
    "classes.test": b"0 a film .\n1 another\n",
    "classes.jsonl": b'{"premise":"a","hypothesis":"b","label":"entailment"}\n',
    "classes.csv": b'"3","a","b"\n',
    "cola.tsv": b"gj04\t1\t\tA cat.\n",
}
for _name, _seed in _LAYOUTS.items():
    _read = functools.partial(_read_layout, _name.partition(".")[0])
    add_file(f"layout-{_name}", _read, lambda seed=_seed: [seed], '[MASK]|,|"label"|null|-1|[]|{}|\t|\n\n|21 |XXXXX')

add_file("scores.jsonl", _read_scores, lambda: _SCORES, "NaN|Infinity|1e999|example|null")
add_file(
    "scores.csv", _read_scores, lambda: [b"example,accuracy\n0,1\n1,0.5\n2,\n3,1\n"], 'NaN|inf|1e999|example|"|a|true'
)
_add_parquet("scores.parquet", _read_scores, "f1", {"example": [0, 1, 2, 3], "f1": [0.5, None, 1.0, 0.0]})
_add_parquet("counts.parquet", _add_up_counts, "word", {"word": ["a", " b"], "count": [3, 2]})
add_file(
    "webtext.toml",
    _read_config,
    _config,
    '[scrape]|[build]|[[a]]| = """|\'\'\'|1979-05-27|inf|nan|0o7|a.b.c|{}|[1]|"x"|-1',
)
