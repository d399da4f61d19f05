"""The targets that are one file: dumps, lists of URLs, archives, documents, benchmarks, scores, TOML."""

from __future__ import annotations

import decimal
import functools
import io
import json
import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz_targets import DOCUMENTS, add, add_file, add_packed, gz
from fuzz_web import HTML

# Python warns of regular expressions that may once mean something else; users write none.
warnings.filterwarnings("ignore", "Possible", FutureWarning)
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
    from pipelines.evaluation.layouts import LAYOUTS, QUESTIONS, gold_number

    read, question = LAYOUTS[layout], QUESTIONS.get(layout)
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
    from pipelines.corpus_config import CorpusConfig
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


def _filter(path: str) -> None:
    import pyarrow as pa

    from pipelines.stages.filter.rules import load_rules

    texts = ["One text. And {another}.\n" * 9, "", "éà ... [12]\nCookies, javascript"]
    load_rules([path], [], [], None).apply(pa.record_batch({"id": ["a", "b", "c"], "text": texts})).reasons()


def _select(path: str) -> None:
    from pipelines.engine.config import read_toml
    from pipelines.stages.scrape.decision import FilterResult, Profile
    from pipelines.stages.scrape.submission import Submission

    profile = read_toml(path, Profile)
    for url in ("http://a.example/1.PDF?x", "http://[::1]/", "x" * 2000):
        submission = Submission(id="a", created_utc=1500000000, url=url, score=9, subreddit="news")
        for rule in profile.rule:
            rule.select([(submission, FilterResult(None, url, "a.example"))])


def _find_signs(path: str) -> None:
    import pyarrow as pa

    from pipelines.engine.config import read_toml
    from pipelines.stages.remove_wikipedia.stage import MirrorSigns

    read_toml(path, MirrorSigns).drop_reasons(pa.array(["From Wikipedia, the free encyclopedia\n[edit] " * 9]))


def _reject(path: str) -> None:
    from unittest.mock import patch

    from pipelines.stages.extract import rejection

    rejection._rules.cache_clear()
    with patch.object(rejection, "data_path", return_value=path):
        rejection.find_rejection("404 not found", "Page not found. Sign in to continue.", HTML)


def _read_preset(path: str) -> None:
    from unittest.mock import patch

    from pipelines.model.training import recipe

    with patch.object(recipe, "data_path", return_value=path):
        recipe.make_recipe("tiny")


def _read_benchmarks(path: str) -> None:
    from unittest.mock import patch

    from pipelines.benchmark_sets import registry

    registry.known_benchmarks.cache_clear()
    with patch.object(registry, "data_path", return_value=path):
        registry.find_entry("x")


def _ask(path: str) -> None:
    """Make the requests of a task, of files that are valid."""
    from pipelines.evaluation.definitions import PAPER, TaskInput, find_task
    from pipelines.evaluation.stage import build_task

    data = f"{path}-data.jsonl"
    with open(data, "w") as stream:
        stream.write('{"text": "a b c.", "question": "q", "answer": ["b", "c"], "label": 1, "sentence": "a _ c"}\n' * 3)
    task = build_task(TaskInput(find_task(path), PAPER, (data,)), _encoder(), 2)
    for request in task.requests():
        assert len(request.prefix) <= 64


@functools.cache
def _encoder() -> Any:
    from pipelines.evaluation.task import Encoder, ModelFacts
    from pipelines.tokenizers.formats import tokenizer_files

    tokenizer = tokenizer_files([(83, 71), (256, 68)])["tokenizer.json"]
    return Encoder(tokenizer, ModelFacts("model", "", 1, None, 64, 259, 258))


def _tasks() -> list[bytes]:
    """Return tasks of each kind, with their options as in data/tasks."""
    from pipelines.evaluation.definitions import TASK_NAMES, read_task

    known = [task for task in map(read_task, TASK_NAMES) if task.kind]
    values = [{"kind": task.kind, "layout": "records"} | task.values("paper") for task in known]
    texts = ["".join(f"{key} = {json.dumps(value)}\n" for key, value in options.items()) for options in values]
    own = 'kind = "choice"\nprompt = "{question}"\nchoices = ["{answer}", "{text}"]\ngold = "label"\n'
    return [f"[task]\n{text}".encode() for text in (own, *texts)]


def _published(folder: str) -> list[bytes]:
    """Return the files of a folder of data/, or a file."""
    from pathlib import Path

    from pipelines.storage.resources import data_path

    path = Path(data_path(folder))
    return [file.read_bytes() for file in (sorted(path.glob("*.toml")) if path.is_dir() else [path])]


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
_TOML_WORDS = '[scrape]|[build]|[[a]]| = """|\'\'\'|1979-05-27|inf|nan|0o7|a.b.c|{}|[1]|"x"|-1|"("|"{x"|(?'
add_file("webtext.toml", _read_config, _config, _TOML_WORDS)
add_file("task.toml", _ask, _tasks, _TOML_WORDS + "|layout|kind|cluster|{text}")
for _name, _read, _folder, _words in (
    ("filter-profile.toml", _filter, "filters", "[[rule]]|[lines]|statistic|min|max|sentences|words"),
    ("scrape-profile.toml", _select, "profiles", "[[rule]]|unlike|created_from|domains|subreddit_words"),
    ("mirror-signs.toml", _find_signs, "wikipedia-mirror-signs.toml", "[[sign]]|pattern|count|weight"),
    ("rejection.toml", _reject, "rejection.toml", "titles|html|few_words"),
    ("preset.toml", _read_preset, "presets", "value|origin|layers"),
    ("benchmarks.toml", _read_benchmarks, "benchmarks.toml", "splits|paper|aliases|own_train"),
):
    add_file(_name, _read, functools.partial(_published, _folder), f"{_TOML_WORDS}|{_words}")
