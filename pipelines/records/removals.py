"""Requests for removal: `removals.jsonl` of a corpus lists what must not enter it again as a link, page or document."""

from __future__ import annotations

import datetime as dt
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.errors import InputError
from pipelines.records.reader import read_records, require_records

LIST = "removals.jsonl"
REMOVED = "removed"  # the reason of a drop
_COLUMNS = ("url", "final_url", "id", "authors", "subreddits", "text")
_NO_NAMES = ("[deleted]", "[removed]")  # of Reddit, for accounts that no longer exist
Kind = Literal["url", "url_prefix", "domain", "id", "text_sha256", "author", "subreddit"]
_FORM = f"expected kind ({', '.join(get_args(Kind))}), value (such as https://a.org/b), reason and date (YYYY-MM-DD)"


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One request for removal, and the day on which it was made."""

    kind: Kind
    value: Annotated[str, msgspec.Meta(max_length=1 << 15)]
    reason: Annotated[str, msgspec.Meta(min_length=1, max_length=1 << 10)]
    date: dt.date

    def __post_init__(self) -> None:
        """Raise ValueError for a value that no document can have."""
        if not self.key:
            raise ValueError(f"{self.value[:100]!r} is not a valid {self.kind}")

    @property
    def key(self) -> str:
        """The value in the form in which values are compared; empty if it is not valid."""
        from pipelines.algorithms.web.urls import canonical_url, host_of  # deferred: the public suffix list takes 0.1 s

        if self.kind in ("url", "url_prefix"):
            return (canonical_url(self.value) or "").partition("://")[2]  # pages are the same by http and https
        if self.kind == "domain":
            host = host_of(canonical_url(f"http://{self.value}") or "") or ""
            return host if "." in host and not {*self.value} & {*"/:?#@"} else ""
        if self.kind == "text_sha256":
            return self.value.lower() if re.fullmatch("[0-9a-fA-F]{64}", self.value) else ""
        name = re.sub("^/?[ur]/", "", self.value).lower()
        return self.value if self.kind == "id" else name * (name not in _NO_NAMES)


class Removals:
    """Finds the documents that requests name; numbers are positions in the requests."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self._numbers: dict[tuple[str, str], int] = {}
        for number, request in enumerate(requests):
            self._numbers.setdefault((request.kind, request.key), number)
        self._prefix_lengths = sorted({len(key) for kind, key in self._numbers if kind == "url_prefix"})
        self.kinds = {request.kind for request in requests}

    def __bool__(self) -> bool:
        """Return whether there are any requests."""
        return bool(self._numbers)

    def columns(self, names: Sequence[str]) -> list[str]:
        """Return the columns of a table that decide, of those with these names."""
        return [name for name in _COLUMNS if name in names and (name != "text" or "text_sha256" in self.kinds)]

    def find(self, batch: pa.RecordBatch, *, by_url: bool = False) -> list[int | None]:
        """Return for each row the number of a request that names it; links and pages have their ids `by_url`."""
        from pipelines.algorithms.web.urls import id_of_url

        rows = batch.select(self.columns(batch.schema.names)).to_pylist()
        return [self.find_row({**row, "id": id_of_url(row["url"])} if by_url else row) for row in rows]

    def split(self, batch: pa.RecordBatch, *, by_url: bool = False) -> tuple[pa.RecordBatch, pa.RecordBatch]:
        """Return the rows that no request names, and the others."""
        is_removed = pa.array([number is not None for number in self.find(batch, by_url=by_url)], pa.bool_())
        return batch.filter(pc.invert(is_removed)), batch.filter(is_removed)

    def find_row(self, row: Mapping[str, Any]) -> int | None:
        """Return the number of a request that names a document with these columns, None if there is none."""
        from pipelines.algorithms.web.urls import canonical_url, host_of

        keys = [("id", row.get("id"))]
        for url in (row.get("url"), row.get("final_url")) if self.kinds & {"url", "url_prefix", "domain"} else ():
            if isinstance(url, str):
                url = canonical_url(url) or url
                address, labels = url.partition("://")[2], (host_of(url) or "").split(".")
                keys += [("url", address), *(("domain", ".".join(labels[start:])) for start in range(len(labels)))]
                keys += [("url_prefix", address[:length]) for length in self._prefix_lengths]
        for kind in self.kinds & {"author", "subreddit"}:
            names = row[f"{kind}s"] if isinstance(row.get(f"{kind}s"), list) else []
            keys += [(kind, str(name).lower().removeprefix("u/")) for name in names]
        if "text_sha256" in self.kinds and row.get("text"):
            keys.append(("text_sha256", hashlib.sha256(row["text"].encode()).hexdigest()))
        return next((number for key in keys if (number := self._numbers.get(key)) is not None), None)  # type: ignore[arg-type]


NO_REMOVALS = Removals(())


def read_removals(corpus: str) -> Removals:
    """Return what the list of a corpus names, which it need not have."""
    path = storage.join(corpus, LIST)
    return Removals(read_requests(path) if storage.exists(path) else ())


def find_request(corpus: str, id: str) -> dict[str, Any] | None:
    """Return the request by which a document was removed from a corpus, with the name of the report."""
    for path in storage.walk_files(storage.join(corpus, "removals")):
        report = path.replace("-ids.json", ".json")
        if path != report and storage.exists(report) and id in (numbers := storage.read_json(path)):
            row = storage.read_json(report)["requests"][numbers[id]]
            return {name: row[name] for name in Request.__struct_fields__} | {"report": report}
    return None


def read_requests(path: str) -> list[Request]:
    """Read a file of requests, JSON lines or CSV; raise InputError, with the line, for one that is not valid."""
    requests = []
    for number, record in require_records(path, read_records(path, columns=Request.__struct_fields__)):
        try:
            requests.append(msgspec.convert(record, Request))
        except msgspec.ValidationError as error:
            raise InputError(f"{path}:{number}: is not a request for removal ({error}); {_FORM}") from error
    return requests
