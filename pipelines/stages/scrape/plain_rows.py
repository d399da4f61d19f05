"""Judges the submissions whose URL is surely canonical by columns: nine links in ten, without a Python object a row.

The rules and their order are those of `Selection.judge_url`; the tests hold the two equal.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines.algorithms.plain_urls import extensions
from pipelines.algorithms.submission_scan import ID, SUBREDDIT, TITLE
from pipelines.algorithms.urls import domain_of_host
from pipelines.stages.scrape.rules import RuleTables
from pipelines.stages.scrape.scanning import Lines
from pipelines.stages.scrape.submission_rows import SUBMISSION_SCHEMA, bucket_of_domain

Array = npt.NDArray[Any]

# A month holds some hundred thousand hosts; a hostile dump may hold endless ones.
_REMEMBERED_HOSTS = 1 << 18


@dataclasses.dataclass
class PlainRows:
    """Submissions that make a link, with the bucket of each and its row among the lines."""

    batch: pa.RecordBatch
    buckets: npt.NDArray[np.int32]
    rows: Array

    def split(self, second: npt.NDArray[np.bool_]) -> tuple[PlainRows, PlainRows]:
        """Return the rows outside of a mask over all lines, and those in it."""
        mask = second[self.rows]
        return self._taken(~mask), self._taken(mask)

    def _taken(self, mask: npt.NDArray[np.bool_]) -> PlainRows:
        return PlainRows(self.batch.filter(pa.array(mask)), self.buckets[mask], self.rows[mask])


def no_plain_rows() -> PlainRows:
    """Return none."""
    return PlainRows(
        pa.RecordBatch.from_pylist([], schema=SUBMISSION_SCHEMA), np.zeros(0, np.int32), np.zeros(0, np.int64)
    )


class PlainRowJudge:
    """Judges by the rules of a profile; remembers what it found of hosts."""

    def __init__(self, tables: RuleTables, buckets: int) -> None:
        self._tables = tables
        self._buckets = buckets
        self._hosts: dict[str, tuple[str, int, int]] = {}

    def judge(self, lines: Lines, rows: Array, hosts: Array, dropped: Counter[str]) -> PlainRows:
        """Return those of some lines that make a link; count the others by the rule that drops them.

        `rows` are good posts whose URL is canonical as it is, and `hosts` where the host of each lies.
        """
        tables = self._tables
        domains, host_places, host_buckets, codes = self._by_host(lines.column(hosts))
        places = host_places[codes]
        self._judge_url_endings(lines, rows, hosts, places)
        if tables.least_by_day < tables.none:
            days = np.searchsorted(np.array(tables.days), lines.created_utc[rows], side="right")
            np.minimum(places, np.array(tables.place_by_day)[days], out=places)
        if tables.over_18 < tables.none:
            places[lines.over_18[rows] & (places > tables.over_18)] = tables.over_18
        if tables.least_by_subreddit < tables.none:
            self._judge_subreddits(lines, rows, places)
        if tables.unlike:
            self._judge_patterns(lines, rows, places)
        for place, count in enumerate(np.bincount(places, minlength=tables.none)[: tables.none].tolist()):
            if count:
                dropped[str(tables.names[place])] += count
        kept = places == tables.none
        batch = _batch(lines, rows[kept], domains.take(pa.array(codes[kept])))
        return PlainRows(batch, host_buckets[codes[kept]], rows[kept])

    def _by_host(self, hosts: pa.StringArray) -> tuple[pa.StringArray, Array, npt.NDArray[np.int32], Array]:
        """Return the domain, place of the first rule, and bucket of each distinct host, and the code of each host."""
        encoded = hosts.dictionary_encode()
        found = [self._hosts.get(host) or self._look_up(host) for host in encoded.dictionary.to_pylist()]
        domains, places, buckets = zip(*found, strict=True) if found else ((), (), ())
        codes = encoded.indices.to_numpy()
        return pa.array(domains, pa.string()), np.array(places, np.int64), np.array(buckets, np.int32), codes

    def _look_up(self, host: str) -> tuple[str, int, int]:
        if len(self._hosts) >= _REMEMBERED_HOSTS:
            self._hosts.clear()
        domain = domain_of_host(host)
        found = domain, self._tables.place_of_host(host, domain), bucket_of_domain(domain, self._buckets)
        self._hosts[host] = found
        return found

    def _judge_url_endings(self, lines: Lines, rows: Array, hosts: Array, places: Array) -> None:
        tables = self._tables
        spans = lines.url_spans[rows]
        if tables.extensions or tables.endings:
            found = np.zeros_like(spans)
            extensions(lines.array, spans, hosts, found)
            encoded = lines.column(found).dictionary_encode()
            names = [name.lower() for name in encoded.dictionary.to_pylist()]
            # A plain URL is the same as it was submitted, so its ending is its extension.
            first = [
                min(tables.extensions.get(name, tables.none), tables.endings.get(name, tables.none)) if name else None
                for name in names
            ]
            by_code = np.array([tables.none if place is None else place for place in first], np.int64)
            np.minimum(places, by_code[encoded.indices.to_numpy()], out=places)
        if tables.short:
            sizes = spans[:, 1] - spans[:, 0]
            limits = np.array([*tables.short, tables.none])
            np.minimum(places, limits[np.minimum(sizes, len(tables.short))], out=places)

    def _judge_subreddits(self, lines: Lines, rows: Array, places: Array) -> None:
        encoded = lines.text(SUBREDDIT, rows).dictionary_encode()
        by_code = np.array([self._tables.subreddits[name] for name in encoded.dictionary.to_pylist()], np.int64)
        np.minimum(places, by_code[encoded.indices.to_numpy()], out=places)

    def _judge_patterns(self, lines: Lines, rows: Array, places: Array) -> None:
        urls = lines.column(lines.url_spans[rows]).to_pylist()
        for place, pattern in self._tables.unlike:
            for row in np.flatnonzero(places > place).tolist():
                if not pattern.fullmatch(urls[row]):
                    places[row] = place


def _batch(lines: Lines, rows: Array, domains: pa.StringArray) -> pa.RecordBatch:
    columns = {
        "url": lines.column(lines.url_spans[rows]),
        "original_url": pa.nulls(len(rows), pa.string()),
        "domain": domains,
        "score": pa.array(np.where(lines.has_score[rows], lines.score[rows], 0)),
        "id": lines.text(ID, rows),
        "subreddit": lines.text(SUBREDDIT, rows),
        "title": lines.text(TITLE, rows),
        "created_utc": pa.array(lines.created_utc[rows]),
        "over_18": pa.array(lines.over_18[rows]),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in SUBMISSION_SCHEMA.names], schema=SUBMISSION_SCHEMA)
