"""The targets that are one file of a folder: of a stage, of a tokenizer, or of a model.

The other files are valid, and the manifest has the checksum of the changed one, as if someone had built the folder so.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz_files import warc_records
from fuzz_targets import DOCUMENTS, add, gz

_WORDS = 'null|true|-1|[]|{}|"x"|1e999|\\ud800'


def _add(name: str, make: Callable[[], Path], file: str, read: Callable[[str], object], words: bytes = b"") -> None:
    """Add a target for one file of the folder that `make` returns."""

    def run(data: bytes, folder: Path) -> None:
        copy = folder / "folder"
        if not copy.exists():
            shutil.copytree(make(), copy)
        (copy / file).write_bytes(data)
        _record(copy, file, data)
        read(str(copy))

    add(name, run, lambda: [(make() / file).read_bytes()], _WORDS)


def _record(folder: Path, name: str, data: bytes) -> None:
    """Write the size and the checksum of a file into the manifest, if it lists it."""
    path = folder / "manifest.json"
    if name == path.name or not path.exists():
        return
    manifest = json.loads(path.read_text())
    for shard in manifest["shards"]:
        for file in shard["files"]:
            if file["name"] == name:
                file |= {"size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    path.write_text(json.dumps(manifest))


def _new_folder() -> Path:
    return Path(tempfile.mkdtemp())


def _options() -> Any:
    from pipelines.engine.run import RunOptions

    return RunOptions()


# Manifests and journals


@functools.cache
def _corpus() -> Path:
    """Return a corpus with a finished `extract`, as another stage reads it, and an unfinished run of `dedup`."""
    from pipelines.engine import manifest
    from pipelines.records import shards
    from pipelines.records.schemas import DOCUMENT_SCHEMA

    corpus = _new_folder()
    with shards.write_shard(str(corpus / "extract"), "documents-00000.parquet", DOCUMENT_SCHEMA) as shard:
        for row in map(json.loads, DOCUMENTS.splitlines()):
            shard.write(row)
    entry = manifest.ShardEntry("shards", "a", 42, 40, {"empty": 2}, {"x": 1.5}, (shard.entry,))
    manifest.write_manifest(
        str(corpus / "extract"), manifest.Manifest(manifest.Identity("extract", 1, {}, {}), (entry,))
    )
    return corpus


def _read_corpus(corpus: str) -> None:
    from pipelines.build import status
    from pipelines.records import inputs
    from pipelines.records.drops import Drops

    status(corpus, verify=True)
    for shard in inputs.open_documents(f"{corpus}/extract").shards:
        for batch in inputs.read_documents(shard, Drops()):
            batch.validate(full=True)


@functools.cache
def _unfinished() -> Path:
    folder = _new_folder()
    try:
        _resume(str(folder), stop=True)
    except InterruptedError:
        return folder
    raise AssertionError("the run was not interrupted")


def _resume(folder: str, stop: bool = False) -> None:
    """Run a stage of two tasks, or resume it; with `stop`, interrupt it after the first."""
    import dataclasses

    from pipelines.engine.run import Stage, TaskResult, stage_run
    from pipelines.records import shards

    @dataclasses.dataclass(frozen=True)
    class NoOptions:
        pass

    def write() -> TaskResult:
        return TaskResult(1, 1, files=(shards.write_file(folder, "a-00000.txt", b"a"),))

    with stage_run(Stage("fuzz", 1), NoOptions(), inputs={"a": "b"}, output=folder, options=_options()) as run:
        run.once("first", write)
        if stop:
            raise InterruptedError
        run.once("second", TaskResult)
        run.finish()


def _resume_copy(folder: str) -> None:
    copy = folder + "-resumed"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(folder, copy)
    _resume(copy)


@functools.cache
def _fetched() -> Path:
    """Return the folder of a finished `fetch` with one page."""
    import datetime as dt

    from pipelines.engine import manifest
    from pipelines.records import shards
    from pipelines.records.schemas import PAGE_SCHEMA

    folder = _new_folder()
    row = {
        "url": "http://a.example/1",
        "outcome": "ok",
        "source": "live",
        "bytes": 9,
        "fetched_at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    }
    with shards.write_shard(str(folder), "pages-00000.parquet", PAGE_SCHEMA) as pages:
        pages.write({**row, "warc_file": "pages-00000.warc", "warc_offset": 0})
        pages.write({**row, "url": "http://a.example/2", "outcome": "dropped.http_not_found"})
    warc = shards.write_file(str(folder), "pages-00000.warc", warc_records()[1])
    entry = manifest.ShardEntry("shards", "a", 2, 1, {"http_not_found": 1}, {}, (pages.entry, warc))
    manifest.write_manifest(str(folder), manifest.Manifest(manifest.Identity("fetch", 1, {}, {}), (entry,)))
    return folder


def _read_fetched(folder: str) -> None:
    from pipelines.records import inputs
    from pipelines.stages.extract.pages import FetchedShard, read_pages

    stage = inputs.open_stage(folder, ("fetch",))
    [pages], warcs = stage.files("pages-", ".parquet"), stage.files("pages-", ".warc")
    for page in read_pages(FetchedShard(folder, pages, tuple(warcs))):
        assert len(page.id) == 32


# The index of Common Crawl

_KEYS = ("example,a)/1", "example,a)/2")


@functools.cache
def _common_crawl() -> Path:
    """Return a folder with the index, and the records that it names."""
    import datetime as dt

    import pyarrow as pa
    import pyarrow.parquet as pq

    folder = _new_folder()
    record = gz(warc_records()[1])
    (folder / "a.warc.gz").write_bytes(record)
    columns = {
        "url_surtkey": [_KEYS[0]], "url": ["http://a.example/1"],
        "fetch_time": [dt.datetime(2014, 1, 2, tzinfo=dt.UTC)],
        "fetch_status": pa.array([200], pa.int16()), "warc_filename": ["a.warc.gz"],
        "warc_record_offset": pa.array([0], pa.int32()), "warc_record_length": pa.array([len(record)], pa.int32()),
        "content_mime_detected": ["text/html"],
    }  # fmt: skip
    pq.write_table(pa.table(columns), folder / "index.parquet")
    return folder


def _look_up(index: str, folder: str) -> None:
    """Read the captures of two keys, and the first of them that is a page."""
    import pyarrow as pa

    from pipelines.records import shards
    from pipelines.stages.fetch.archives import open_index, open_index_file, read_row_group
    from pipelines.stages.fetch.captures import Wanted, find_page, read_record
    from pipelines.stages.fetch.config import FetchConfig
    from pipelines.stages.fetch.outcomes import Failure, dropped

    config = FetchConfig(archive_window=9)
    read = functools.partial(read_record, lambda name: f"{folder}/{name.replace('/', '')}", config.max_page_bytes)
    wanted = Wanted("http://a.example/1", 1388631845, dropped(0, Failure("dns", "")))
    for path in open_index([f"{folder}/{index}"], folder):
        with shards.open_stream(path) as stream:
            parquet = open_index_file(path, stream)
            for number in range(parquet.num_row_groups)[:9]:
                rows = read_row_group(path, parquet, number, pa.chunked_array([_KEYS]))
                find_page(rows.to_pylist(), read, wanted, wanted.url, config)


# Tokenizers and token shards


@functools.cache
def _form(*names: str) -> Path:
    """Return a folder with some of the files of a small tokenizer, or with all of them."""
    from pipelines.tokenizers.formats import tokenizer_files

    folder = _new_folder()
    for name, data in tokenizer_files([(83, 71), (256, 68)]).items():
        if name in names or not names:
            (folder / name).write_bytes(data)
    return folder


def _read_tokenizer(folder: str) -> None:
    import pyarrow as pa

    from pipelines.errors import InputError
    from pipelines.tokenizers.encoding import FastEncoder, LibraryEncoder
    from pipelines.tokenizers.formats import end_of_text_id, load_document_tokenizer, read_tokenizer, vocabulary_size

    data = read_tokenizer(folder)
    tokenizer = load_document_tokenizer(data, folder)
    assert end_of_text_id(tokenizer) < vocabulary_size(tokenizer)
    texts = pa.array(["Some text of 12 words, éà <|endoftext|>.\n", ""])
    LibraryEncoder(tokenizer).encode(texts)
    with contextlib.suppress(InputError):  # it supports fewer kinds of tokenizers
        FastEncoder(data, folder).encode(texts)


@functools.cache
def _tokens() -> Path:
    from pipelines.stages.tokenize.config import TokenizeConfig
    from pipelines.stages.tokenize.stage import tokenize

    folder = _new_folder()
    (folder / "documents.jsonl").write_bytes(DOCUMENTS)
    tokenize(
        TokenizeConfig(held_out=0.2), documents=str(folder / "documents.jsonl"), tokenizer=str(_form()),
        output=str(folder / "tokens"), options=_options(),
    )  # fmt: skip
    return folder / "tokens"


def _read_tokens(folder: str) -> None:
    from pipelines.model.training.data import open_tokens, token_bytes
    from pipelines.model.training.recipe import make_recipe
    from pipelines.stages.pretrain.stage import show_batch

    tokens = open_tokens(folder)
    token_bytes(tokens.tokenizer, tokens.vocab_size)
    tokens.held_out.read(0, tokens.held_out.tokens)
    show_batch(make_recipe("tiny", ("context=8", "batch_size=2", "micro_batch=2")), tokens=folder, step=1)


# Indexes


@functools.cache
def _index() -> Path:
    from pipelines.stages.overlap_index.config import OverlapIndexConfig
    from pipelines.stages.overlap_index.stage import overlap_index

    folder = _new_folder()
    (folder / "documents.jsonl").write_bytes(DOCUMENTS)
    config = OverlapIndexConfig(error_rate=1e-2)
    overlap_index(config, documents=str(folder / "documents.jsonl"), output=str(folder / "index"), options=_options())
    return folder / "index"


def _read_index(folder: str) -> None:
    from pipelines.stages.overlap_report.config import OverlapReportConfig
    from pipelines.stages.overlap_report.filter_index import FilterIndex

    index = FilterIndex(folder)
    index.certificate(probes=100)
    index.check_options(OverlapReportConfig())


# Models


@functools.cache
def _model() -> Path:
    """Return a GPT-2 of 1 layer as `webtext export` writes it, but without a manifest."""
    import torch

    from pipelines import storage
    from pipelines.model.io.hugging_face import model_config, to_hugging_face
    from pipelines.model.io.tensor_files import write_tensors
    from pipelines.model.network.gpt2 import GPT2, Architecture
    from pipelines.tokenizers.formats import end_of_text_id, load_document_tokenizer

    torch.manual_seed(0)
    folder = _new_folder()
    tokenizer = load_document_tokenizer((_form() / "tokenizer.json").read_bytes(), "tokenizer.json")
    architecture = Architecture(1, 8, 2, 16, tokenizer.get_vocab_size())
    weights = GPT2(architecture).state_dict()
    write_tensors(str(folder), "model.safetensors", to_hugging_face(weights))
    storage.write_json(str(folder / "config.json"), model_config(architecture, end_of_text_id(tokenizer)))
    shutil.copy(_form() / "tokenizer.json", folder)
    names = {
        "layers": "n_layer",
        "width": "n_embd",
        "heads": "n_head",
        "context": "block_size",
        "vocab_size": "vocab_size",
    }
    arguments = {names[name]: getattr(architecture, name) for name in names}
    named = {f"transformer.{name}": weight for name, weight in weights.items()}
    torch.save({"model": named, "model_args": arguments}, folder / "ckpt.pt")
    return folder


def _read_model(folder: str) -> None:
    from pipelines.model.io.import_weights import import_weights
    from pipelines.model.io.model_folder import open_model

    model = open_model(folder)
    model.tokenizer()
    model.fingerprint()
    import_weights(folder, vocab_size=model.model.architecture.vocab_size)


def _read_nanogpt(folder: str) -> None:
    from pipelines.model.io.import_weights import import_weights

    import_weights(f"{folder}/ckpt.pt", vocab_size=259)


@functools.cache
def _training() -> Path:
    """Return the folder of an unfinished training, with a checkpoint."""
    import torch

    from pipelines import storage
    from pipelines.model.network.gpt2 import GPT2, Architecture
    from pipelines.model.training.checkpoint import save_checkpoint

    folder = _new_folder()
    architecture = {"layers": 1, "width": 8, "heads": 2, "context": 16, "vocab_size": 259}
    model = GPT2(Architecture(**architecture))
    optimizer = torch.optim.AdamW(model.parameters())
    sum(weight.sum() for weight in model.parameters()).backward()
    optimizer.step()
    rows = [{"step": 1, "loss": 5.5, "held_out_loss": 5.0}]
    save_checkpoint(str(folder), 1, model=model, optimizer=optimizer, rows=rows, keep_latest=1)
    (folder / "metrics.jsonl").write_bytes((folder / "checkpoints/step-0000001/metrics.jsonl").read_bytes())
    storage.write_json(
        str(folder / "config.json"), {"format": "webtext-gpt2", "architecture": architecture, "end_of_text": 258}
    )
    shutil.copy(_form() / "tokenizer.json", folder)
    return folder


def _read_training(folder: str) -> None:
    from pipelines.model.io.model_folder import open_model

    open_model(folder).tokenizer()


_add("manifest", _corpus, "extract/manifest.json", _read_corpus)
_add("stage-shard", _corpus, "extract/documents-00000.parquet", _read_corpus)
_add("fetched-pages", _fetched, "pages-00000.parquet", _read_fetched)
_add("fetched-warc", _fetched, "pages-00000.warc", _read_fetched)
_add("journal-header", _unfinished, "_journal/run.json", _resume_copy)
_add("journal-entry", _unfinished, "_journal/first--first.json", _resume_copy)
for _file in ("index.parquet", "a.warc.gz"):
    _add(f"crawl-{_file}", _common_crawl, _file, functools.partial(_look_up, "index.parquet"))
_add("tokenizer.json", functools.partial(_form, "tokenizer.json"), "tokenizer.json", _read_tokenizer)
_add("encoder.json", functools.partial(_form, "encoder.json", "vocab.bpe"), "encoder.json", _read_tokenizer)
_add("merges.txt", functools.partial(_form, "vocab.json", "merges.txt"), "merges.txt", _read_tokenizer)
_add("ranks.tiktoken", functools.partial(_form, "ranks.tiktoken"), "ranks.tiktoken", _read_tokenizer)
_add("tokens.json", _tokens, "tokens.json", _read_tokens)
_add("token-shard", _tokens, "train-00000.bin", _read_tokens)
_add("token-documents", _tokens, "train-00000-documents.parquet", _read_tokens)
_add("token-tokenizer", _tokens, "tokenizer.json", _read_tokens)
for _file in ("index.json", "index.bloom"):
    _add(f"blocked-{_file}", _index, _file, _read_index)
for _file in ("config.json", "model.safetensors", "tokenizer.json"):
    _add(f"model-{_file}", _model, _file, _read_model)
_add("model-ckpt.pt", _model, "ckpt.pt", _read_nanogpt)
_add("training-config", _training, "config.json", _read_training)
_add("training-metrics", _training, "metrics.jsonl", _read_training)
_add("training-state", _training, "checkpoints/step-0000001/state.json", _read_training)
