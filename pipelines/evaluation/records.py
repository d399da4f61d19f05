"""The records of a task's files: JSONL, JSON, CSV, TSV, Parquet, Arrow, or the lines of a text.

And their documents, or a sample of those that `tokenize` trained on or held out. Paper, figure 4.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipelines import storage
from pipelines.engine.config import option
from pipelines.engine.manifest import Identity, has_manifest, read_manifest
from pipelines.errors import InputError, UsageError
from pipelines.records import inputs, reader
from pipelines.records.document_options import DocumentConfig
from pipelines.records.document_split import document_keys, hash_keys, held_out_mask, split_keys
from pipelines.records.drops import Drops
from pipelines.records.reader import BadRecord, file_format, parse_json, parse_line, require_records
from pipelines.records.tally import LowestHashes
from pipelines.stages.tokenize.config import TokenizeConfig
from pipelines.storage.bounded import BYTE_ORDER_MARK
from pipelines.storage.compression import open_decompressed

SUFFIXES = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".parquet", ".arrow", ".txt", ".tokens", ".raw", "")
_READ_BYTES = 1 << 20
# An error page instead of the download, or data in an unknown compression.
_FOREIGN = re.compile(rb"\s*<(!doctype html|html)\b|[^\n]*\0", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\{([\w.-]+)\}")
_UNCLOSED = re.compile(r"\{[\w.-]++(?=[^{}]*(\{|$))")

FILE = "file"
_TRAIN, _HELD_OUT = "train", "held-out"
_PARTS = f"part=all|{_TRAIN}|{_HELD_OUT}"
_SAMPLE = 1000


class Record(NamedTuple):
    """The fields of a record, and its file and line or row, as in messages."""

    fields: Mapping[str, Any]
    place: str

    def text(self, template: str) -> str:
        """Return a template with its `{field}` placeholders replaced; raise InputError for a field that is missing."""
        return _PLACEHOLDER.sub(lambda match: str(self.value(match[1])), template)

    def text_of(self, field: str) -> str:
        """Return a field as a text; a template with {field} is possible."""
        return self.text(field if "{" in field else f"{{{field}}}")

    def value(self, name: str) -> Any:
        """Return a field; `a.b` is a field of a record, `a.0` an item of a list. Raise InputError for null and NaN."""
        value: Any = self.fields
        for key in name.split("."):
            if isinstance(value, Mapping) and key in value:
                value = value[key]
            elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                known = ", ".join(map(repr, self.fields)) or "none"
                raise InputError(f"{self.place}: has no field {name!r}; its fields are {known}; see `--show-task NAME`")
        for part in value if isinstance(value, list) else [value]:
            if part is None or (isinstance(part, float) and math.isnan(part)):
                verb, kind = "is" if part is value else "contains", "null" if part is None else "NaN"
                raise InputError(f"{self.place}: field {name!r} {verb} {kind}")
        return value

    def texts(self, name: str) -> list[str]:
        """Return a field with a list of texts; raise InputError for another value."""
        value = self.value(name)
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            raise InputError(f"{self.place}: {name} is not a list of texts")
        return value


def check_template(template: str, option: str) -> None:
    """Raise UsageError for a placeholder that is not closed; other braces are text."""
    if match := _UNCLOSED.search(template):
        raise UsageError(f"{option}: the placeholder {match[0]!r} is not closed; write {match[0] + '}'!r}")


def read_records(paths: Sequence[str], columns: Sequence[str] = ()) -> Iterator[Record]:
    """Yield the records of files; a line of a text has the field `text`, and blank lines are skipped.

    The records of a `.json` file with one object are in its field `data`. CSV and TSV with as many columns as `columns`
    may lack a header. Raises InputError, with the place, for what cannot be read.
    """
    for path, name in zip(paths, storage.names_below_common_folder(paths), strict=True):
        for number, value in _text_lines(path) if is_text(path) else _values(path, columns):
            if not isinstance(value, Mapping):
                raise InputError(f"{name}:{number}: is not a record, but {json.dumps(value, default=str)[:60]}")
            yield Record(value, f"{name}:{number}")


def is_text(path: str) -> bool:
    """Return whether a file is plain text, and has lines instead of records."""
    return file_format(storage.basename(path)) == "text"


def read_lines(path: str, tail_bytes: int = 0) -> Iterator[tuple[int, str]]:
    """Yield the numbers, from 1, and the lines of a text with their ends, or of its last `tail_bytes` bytes.

    A tail begins with its first whole character.
    """
    _check_is_text(path)
    lines = _tail_lines(path, tail_bytes) if tail_bytes else reader.read_records(path, "text", keep_blank=True)
    yield from require_records(path, lines)


def _check_is_text(path: str) -> None:
    with open_decompressed(path) as stream:
        start = stream.peek().removeprefix(BYTE_ORDER_MARK)  # type: ignore[attr-defined]
    if _FOREIGN.match(start):
        raise InputError(f"{path}: is a web page or binary data, not text (begins with {start[:20]!r})")


def _tail_lines(path: str, size: int) -> Iterator[reader.Record]:
    tail = b""
    with open_decompressed(path) as stream:
        while block := stream.read(max(size, _READ_BYTES)):
            tail = (tail + block)[-size:]
    for number, line in enumerate(re.sub(rb"^[\x80-\xbf]+", b"", tail).splitlines(True), 1):
        yield number, parse_line(line), line


def _values(path: str, columns: Sequence[str]) -> Iterator[tuple[int, Any]]:
    if file_format(path) not in reader.TABLES:
        _check_is_text(path)
    if file_format(path) == "json":
        with open_decompressed(path) as stream:
            value = parse_json(stream.read())
        if isinstance(value, BadRecord):
            raise InputError(f"{path}: is not valid JSON ({value.detail})")
        records = value.get("data") if isinstance(value, dict) else value
        if not isinstance(records, list):
            raise InputError(f"{path}: is neither a list of records nor an object with such a list in 'data'")
        yield from enumerate(records, 1)
    else:
        yield from require_records(path, reader.read_records(path, default_header=columns))


def _text_lines(path: str) -> Iterator[tuple[int, dict[str, str]]]:
    for number, line in read_lines(path):
        if number == 1 and (form := _structured(line.strip())):
            remedy = "name records or a text" if path.lower().endswith(".xml") else "rename it to its own suffix"
            raise InputError(f"{path}: is {form}, not a text with a line per example; {remedy}")
        if line.strip():
            yield number, {"text": line.rstrip("\r\n")}


def _structured(line: str) -> str | None:
    """Return the format of a file that begins with this line, None if it is text."""
    if line.startswith("<?xml"):
        return "XML"
    if isinstance(parse_json(line.encode()), dict | list):
        return "JSON (.jsonl)"
    return "JSON (.json)" if line in ("{", "[", "[{") else None


@dataclasses.dataclass(frozen=True)
class DocumentOptions:
    """Which documents are read."""

    text_field: str = option("text", "Field of records that has the text; a template with {field} is possible.")
    part: str = option(
        FILE,
        "Which documents are read: all of the files in order (file), or a sample of one or both (all) of the splits of "
        "`tokenize`.",
        choices=(FILE, "all", _TRAIN, _HELD_OUT),
    )
    sample: int = option(
        0,
        "Maximum documents per split, chosen by a hash, all in memory; the splits get equally many. 0: 1,000.",
        minimum=0,
        only_with=_PARTS,
    )
    held_out: float = option(
        0.0,
        "Fraction of documents that is held out; 0: what `tokenize` recorded in a folder next to the documents.",
        minimum=0.0,
        maximum=0.5,
        only_with=_PARTS,
    )


class Document(NamedTuple):
    """A text, and its file and line, or its split and id."""

    text: str
    place: str


@dataclasses.dataclass
class Documents:
    """The documents of files; `counts` describes the sample once it has been read."""

    options: DocumentOptions
    files: Sequence[str]
    counts: defaultdict[str, float] = dataclasses.field(default_factory=lambda: defaultdict(float))

    def __iter__(self) -> Iterator[Document]:
        """Yield the documents; those of a sample by ascending hash, alternating between the splits."""
        if self.options.part == FILE:
            field = self.options.text_field
            return (Document(record.text_of(field), record.place) for record in read_records(self.files))
        return iter(self._sample)

    @functools.cached_property
    def _sample(self) -> list[Document]:
        """The documents with the lowest hashes, equally many per split."""
        size = self.options.sample or _SAMPLE
        source, share = self._open()
        lowest = {split: LowestHashes(size) for split in (_HELD_OUT, _TRAIN) if self.options.part in ("all", split)}
        drops = Drops()
        for shard in source.undivided:
            for batch in inputs.read_documents(shard, drops):
                # By the hash of the document, since near-duplicates of a cluster share the hash of the cluster.
                keys = document_keys(batch, shard)
                hashes, is_held_out = hash_keys(keys, "evaluate"), held_out_mask(split_keys(batch, keys), share)
                for split, sample in lowest.items():
                    rows = np.flatnonzero(is_held_out == (split == _HELD_OUT))
                    self.counts[f"{split}_documents"] += len(rows)
                    rows = rows[np.argsort(hashes[rows], kind="stable")[:size]]
                    columns = (batch.column(name).take(pa.array(rows)).to_pylist() for name in ("id", "text"))
                    for hash, id, text in zip(hashes[rows].tolist(), *columns, strict=True):
                        sample.add((hash, id), Document(text, f"{split}:{id}"))
        self.counts["fraction_held_out"] = share
        self.counts["documents_not_read"] = drops.counts.total()
        if missing := [split for split, sample in lowest.items() if not len(sample)]:
            raise InputError(
                f"{storage.parent(self.files[0])}: no document is in the split {missing[0]} "
                f"(fraction held out: {share:g})"
            )
        # Alternating, so that the first few are of both splits, too.
        return [document for turn in zip(*lowest.values(), strict=False) for document in turn]

    def _open(self) -> tuple[inputs.DocumentInput, float]:
        """Return the documents as `tokenize` read them, and the fraction that it held out."""
        folder = storage.parent(storage.absolute_path(self.files[0]))
        paths = list(map(storage.absolute_path, self.files))
        with contextlib.suppress(InputError):  # a folder with a manifest, but without documents
            if has_manifest(folder) and [file.path for file in inputs.open_documents(folder).files] == paths:
                paths = [folder]
        if self.options.held_out:
            options = DocumentConfig(text_field=self.options.text_field)
            return inputs.open_documents(paths, options), self.options.held_out
        for identity in _tokenized_near(folder):
            config = identity.config
            fields = (field.name for field in dataclasses.fields(DocumentConfig))
            source = inputs.open_documents(paths, DocumentConfig(**{name: config[name] for name in fields}))
            if source.fingerprint == identity.inputs.get("documents"):
                return source, float(config["held_out"])
        raise InputError(
            f"{folder}: no folder next to it has these documents as tokens, so what was held out is not known; "
            "run `webtext tokenize`, or set held_out in a task file of your own"
        )


def _tokenized_near(folder: str) -> Iterator[Identity]:
    """Yield the results of `tokenize` in a folder and next to it."""
    for near in (folder, storage.parent(folder)):
        for name in storage.list_folder(near):
            path = storage.join(near, name)
            with contextlib.suppress(InputError):  # a manifest of another program
                if has_manifest(path) and (identity := read_manifest(path).identity).stage == "tokenize":
                    yield identity.with_current_options(TokenizeConfig)  # also of an earlier version
