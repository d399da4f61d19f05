"""Estimates the amount of text in an input from a small sample, without reading the whole input.

The sample is read in windows spread evenly over the bytes of all files. Estimating never fails: a file that
cannot be read is skipped, and the stage that reads it reports why.
"""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Sequence
from typing import Any, BinaryIO

import pyarrow as pa

from pipelines import storage
from pipelines.errors import InputError, WebtextError
from pipelines.format import format_bytes
from pipelines.records import inputs, shards
from pipelines.records.drops import Drops
from pipelines.records.text_readers import ReadOptions, json_row
from pipelines.storage.compression import SUFFIXES, CountedReader, open_counted, strip_compression

_WINDOWS = 16
_WINDOW_BYTES = 512 << 10
# A window of lines is read in parts spread over the file, since neighboring documents are alike.
_WINDOW_PARTS = 8
_PART_BYTES = _WINDOW_BYTES // _WINDOW_PARTS
# Only the beginning of a long document is sampled, so that one book, or one of random characters, does not dominate.
_SAMPLED_CHARACTERS = 128 << 10
# Every file of an input up to this size and number of files is sampled.
_SMALL_INPUT_BYTES = 2 << 20
_SMALL_INPUT_FILES = 256
# A longer line, and the rest of its file, is skipped; a book fits.
_MAX_LINE_BYTES = 16 << 20
# Bytes of a compressed file to decompress in order to reach separate windows: about a second in total.
_DECODED_BYTES = {".zst": 128 << 20, ".gz": 64 << 20, ".xz": 32 << 20, ".bz2": 16 << 20}
_BATCH_BYTES = 1 << 18


@dataclasses.dataclass(frozen=True)
class DocumentsEstimate:
    """How much text an input contains, in bytes of UTF-8, and a sample of it; exact if all of it was read.

    `shards` is the number of tasks that the input is split into, and so how many workers it keeps busy.
    """

    text_bytes: int
    documents: int
    shards: int
    is_exact: bool
    sample: tuple[str, ...]
    sample_bytes: int


@dataclasses.dataclass(frozen=True)
class _FileEstimate:
    """The estimate for one file, and the texts sampled from it."""

    text_bytes: float
    documents: float
    is_exact: bool
    texts: tuple[str, ...]


@dataclasses.dataclass
class _Tally:
    """The lines that begin in the sampled parts: their bytes, their documents, the bytes of those, and the texts.

    Whether a line is sampled does not depend on its length, so the sample is representative.
    """

    sampled_bytes: int = 0
    line_bytes: int = 0
    documents: int = 0
    text_bytes: int = 0
    texts: list[str] = dataclasses.field(default_factory=list)

    def add(self, line: bytes, options: ReadOptions) -> None:
        """Count one line; one without a document counts only as bytes."""
        self.line_bytes += len(line)
        if row := json_row(line, "", Drops(), options):
            self.documents += 1
            self.text_bytes += len(row["text"].encode())
            self.texts.append(row["text"][:_SAMPLED_CHARACTERS])


def estimate_documents(source: inputs.DocumentInput) -> DocumentsEstimate:
    """Estimate the text of an input from at most about 8 MB of text and a second of reading; the same each time.

    The number of documents in a stage's folder is known. Of a compressed file too large to be decompressed, only the
    beginning is sampled.
    """
    files = {file.path: (file, shard.options) for shard in source.shards for file in shard.files}
    windows = _assign_windows([file for file, _ in files.values()])
    paths = list(windows)
    estimates = storage.map_files(
        lambda path: _estimate_file(*files[path], windows[path]),
        paths,
        are_local=storage.are_local(paths),
    )
    known = {path: estimate for path, estimate in zip(paths, estimates, strict=True) if estimate is not None}
    text_bytes, documents = _extrapolate([file for file, _ in files.values()], windows, known)
    sample = tuple(text for estimate in known.values() for text in estimate.texts)
    return DocumentsEstimate(
        text_bytes=round(text_bytes),
        documents=round(documents) if source.records is None else source.records,
        shards=len(source.shards),
        is_exact=len(known) == len(files) and all(estimate.is_exact for estimate in known.values()),
        sample=sample,
        sample_bytes=sum(len(text.encode()) for text in sample),
    )


def _assign_windows(files: Sequence[inputs.InputFile]) -> dict[str, int]:
    """Return the number of windows per file, by its share of all bytes; files without windows are not opened."""
    total = sum(file.size_bytes for file in files)
    if total <= _SMALL_INPUT_BYTES and len(files) <= _SMALL_INPUT_FILES:
        return {file.path: max(1, round(_WINDOWS * file.size_bytes / max(1, total))) for file in files}
    windows: dict[str, int] = {}
    end = assigned = 0
    for file in files:
        end += file.size_bytes
        while assigned < _WINDOWS and (2 * assigned + 1) * total < 2 * _WINDOWS * end:
            windows[file.path] = windows.get(file.path, 0) + 1
            assigned += 1
    return windows


def _extrapolate(
    files: Sequence[inputs.InputFile], windows: dict[str, int], known: dict[str, _FileEstimate]
) -> tuple[float, float]:
    """Return text bytes and documents of all files, given the estimates of those that were sampled."""
    sizes = {file.path: file.size_bytes for file in files}
    rest = sum(size for path, size in sizes.items() if path not in known)
    total_windows = sum(windows[path] for path in known)
    text_bytes = documents = 0.0
    for path, estimate in known.items():
        # Each window represents an equal part of the bytes that were not sampled.
        factor = 1 + (rest * windows[path] / total_windows) / max(1, sizes[path])
        text_bytes += factor * estimate.text_bytes
        documents += factor * estimate.documents
    return text_bytes, documents


def _estimate_file(file: inputs.InputFile, options: ReadOptions, windows: int) -> _FileEstimate | None:
    """Return the estimate for a file; None if it cannot be read, which the stage will report."""
    kind = strip_compression(file.path)
    try:
        if kind.endswith(".parquet") and "." not in options.text_field:
            return _estimate_parquet(file, options.text_field, windows)
        if kind.endswith((".txt", ".md")):
            return _estimate_text(file, windows)
        if kind.endswith((".jsonl", ".ndjson")):
            return _estimate_lines(file, options, windows)
        return _estimate_beginning(file, options, windows)
    except (WebtextError, OSError, pa.ArrowException):
        return None


def _estimate_parquet(file: inputs.InputFile, text_field: str, windows: int) -> _FileEstimate:
    """Read the number of rows and the uncompressed size of the column from the footer, and sample rows."""
    with shards.open_stream(file.path) as stream:
        parquet = shards.open_parquet(stream, file.path, for_probes=True)
        shards.require_columns(file.path, parquet.schema_arrow.names, [text_field])
        rows = parquet.metadata.num_rows
        text_bytes: float = shards.estimate_text_bytes(stream, file.path, parquet.metadata, text_field, max_groups=16)
        batch_rows = max(1, min(1024, int(_BATCH_BYTES * rows / max(1.0, text_bytes))))
        rows_read, texts = _sample_rows(parquet, text_field, windows, batch_rows)
    sampled_bytes = sum(len(text.encode()) for text in texts)
    sample = tuple(text[:_SAMPLED_CHARACTERS] for text in texts)
    if rows_read == rows:
        return _FileEstimate(sampled_bytes, len(texts), True, sample)
    # A dictionary stores repeated texts once; then the rows are a better estimate than the size of the column.
    if rows_read and sampled_bytes / rows_read > 2 * text_bytes / rows:
        text_bytes = sampled_bytes / rows_read * rows
    return _FileEstimate(text_bytes, rows * len(texts) / max(1, rows_read), False, sample)


def _sample_rows(parquet: Any, text_field: str, windows: int, batch_rows: int) -> tuple[int, list[str]]:
    """Return the number of rows read at the beginnings of evenly spread row groups, and their texts."""
    groups = sorted({parquet.num_row_groups * window // windows for window in range(windows)})
    texts: list[str] = []
    rows_read = 0
    for group in groups if parquet.num_row_groups else []:
        # One thread: distributing so little work takes longer than doing it.
        batches = parquet.iter_batches(
            batch_size=batch_rows, row_groups=[group], columns=[text_field], use_threads=False
        )
        characters = 0
        for batch in batches:
            batch_texts = [text for text in batch.column(0).to_pylist() if isinstance(text, str)]
            rows_read += batch.num_rows
            texts += batch_texts
            characters += sum(map(len, batch_texts))
            if characters >= windows * _WINDOW_BYTES // len(groups):
                break
    return rows_read, texts


def _estimate_text(file: inputs.InputFile, windows: int) -> _FileEstimate:
    with open_counted(file.path) as stream:
        data = stream.read(windows * _WINDOW_BYTES)
        is_whole = not stream.peek(1)
        size = len(data) if is_whole else _decoded_size(file, stream)
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(data, is_whole)
    except UnicodeDecodeError:
        return _FileEstimate(0, 0, is_whole, ())
    return _FileEstimate(len(text.encode()) if is_whole else size, 1, is_whole, (text,))


def _estimate_lines(file: inputs.InputFile, options: ReadOptions, windows: int) -> _FileEstimate:
    if not file.path.lower().endswith(SUFFIXES):
        with storage.open_read(file.path) as plain:
            size: float = file.size_bytes
            tally, is_whole = _sample_lines(plain, file.size_bytes, options, windows)
    else:
        # Read twice, since windows can only be spread over a known size.
        limit = next(size for suffix, size in _DECODED_BYTES.items() if file.path.lower().endswith(suffix))
        with open_counted(file.path) as stream:
            reach = _skip(stream, limit // _WINDOWS * windows)
            size = _decoded_size(file, stream)
        with open_counted(file.path) as stream:
            tally, is_whole = _sample_lines(stream, reach, options, windows)
            is_whole = is_whole and not stream.peek(1)
    if is_whole or not tally.line_bytes:
        return _FileEstimate(tally.text_bytes, tally.documents, is_whole, tuple(tally.texts))
    documents = tally.documents * size / tally.sampled_bytes
    return _FileEstimate(tally.text_bytes * size / tally.line_bytes, documents, False, tuple(tally.texts))


def _estimate_beginning(file: inputs.InputFile, options: ReadOptions, windows: int) -> _FileEstimate:
    """Sample the first documents of a file that can only be read from its start, by the share of text in them."""
    documents = text_bytes = read_bytes = 0
    texts: list[str] = []
    shard = inputs.DocumentShard(0, (file,), options)
    for batch in inputs.read_documents(shard, Drops(), batch_bytes=_BATCH_BYTES):
        sizes = [len(text.encode()) for text in batch.column("text").to_pylist()]
        documents += batch.num_rows
        text_bytes += sum(sizes)
        read_bytes += batch.nbytes
        texts += [text[:_SAMPLED_CHARACTERS] for text in batch.column("text").to_pylist()]
        if text_bytes >= windows * _WINDOW_BYTES:
            break
    else:
        return _FileEstimate(text_bytes, documents, True, tuple(texts))
    with open_counted(file.path) as stream:
        _skip(stream, read_bytes)
        factor = max(1.0, _decoded_size(file, stream) / max(1, read_bytes))
    return _FileEstimate(text_bytes * factor, documents * factor, False, tuple(texts))


def _decoded_size(file: inputs.InputFile, stream: CountedReader) -> float:
    """Extrapolate the decompressed size of a file from its beginning."""
    return stream.decoded_bytes * max(1.0, file.size_bytes / max(1, stream.file_bytes))


def _sample_lines(
    stream: BinaryIO | CountedReader, size: int, options: ReadOptions, windows: int
) -> tuple[_Tally, bool]:
    """Return the lines that begin in evenly spread parts of the first `size` bytes, and whether these are all lines."""
    tally = _Tally()
    position = 0
    is_whole = True
    parts = windows * _WINDOW_PARTS
    for start in (size * number // parts for number in range(parts)):
        if start > position:
            is_whole = False
            if isinstance(stream, CountedReader):
                _skip(stream, start - 1 - position)
            else:
                stream.seek(start - 1)
            position = start - 1 + len(stream.readline(_MAX_LINE_BYTES))  # the rest of the line before
        end = min(size, start + _PART_BYTES)
        tally.sampled_bytes += end - start
        while position < end:
            line = stream.readline(_MAX_LINE_BYTES)
            if not line or (len(line) == _MAX_LINE_BYTES and not line.endswith(b"\n")):
                return tally, False
            tally.add(line, options)
            position += len(line)
    return tally, is_whole


def _skip(stream: CountedReader, size: int) -> int:
    skipped = 0
    while skipped < size and (data := stream.read1(min(_WINDOW_BYTES, size - skipped))):
        skipped += len(data)
    return skipped


def round_down(number: int, digits: int = 2) -> int:
    """Return a number rounded down to its first digits, for a suggested limit."""
    unit = int(10 ** max(0, len(str(number)) - digits))
    return number // unit * unit


def check_memory(
    task: str, needed_bytes: int, available_bytes: int | None, advice: str, *, tolerance: float = 1.0
) -> None:
    """Raise InputError if a task needs more memory than is available, by more than the factor `tolerance`."""
    if available_bytes is not None and needed_bytes > tolerance * available_bytes:
        raise InputError(
            f"{task} needs about {format_bytes(needed_bytes)} of memory, and {format_bytes(available_bytes)} are "
            f"available; {advice}"
        )
