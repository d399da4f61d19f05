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

from pipelines.algorithms.kernels.byte_scan import BLOCK
from pipelines.algorithms.text.json_strings import text_column
from pipelines.algorithms.web.plain_urls import extensions, plain_hosts, simplify
from pipelines.algorithms.web.submission_scan import ID, SUBREDDIT, TITLE
from pipelines.algorithms.web.urls import domain_of_host
from pipelines.stages.scrape.rules import RuleTables
from pipelines.stages.scrape.scanning import Lines
from pipelines.stages.scrape.submission_rows import SUBMISSION_SCHEMA, bucket_of_domain

Array = npt.NDArray[Any]

# A month holds some hundred thousand hosts; a hostile dump may hold endless ones.
_REMEMBERED_HOSTS = 1 << 18


@dataclasses.dataclass
class PlainUrls:
    """The URLs of some lines in a form that is surely canonical; spans of them and of their hosts lie in `array`.

    `as_submitted` is true where that is the form in which they were submitted.
    """

    rows: Array
    array: npt.NDArray[np.uint8]
    spans: Array
    hosts: Array
    as_submitted: bool

    def taken(self, mask: npt.NDArray[np.bool_]) -> PlainUrls:
        """Return those of a mask."""
        return PlainUrls(self.rows[mask], self.array, self.spans[mask], self.hosts[mask], self.as_submitted)

    def column(self, spans: Array) -> pa.StringArray:
        """Return the bytes of spans as a column."""
        return text_column(self.array, spans)


def plain_urls(lines: Lines, rows: Array) -> PlainUrls:
    """Return those of some lines whose URL is surely canonical as it was submitted."""
    hosts = lines.hosts_of_plain_urls(rows)
    return PlainUrls(rows, lines.array, lines.url_spans[rows], hosts, as_submitted=True).taken(hosts[:, 1] > 0)


def simplified_urls(lines: Lines, rows: Array) -> PlainUrls:
    """Return those of some lines of whose URL the canonical form is sure once it was simplified."""
    spans = lines.url_spans[rows]
    spans[lines.has_escaped_url[rows]] = 0
    array = np.zeros(int((spans[:, 1] - spans[:, 0] + 1).sum()) + BLOCK, np.uint8)
    found = np.zeros_like(spans)
    simplify(lines.array, spans, array, found)
    hosts = np.zeros_like(found)
    plain_hosts(array, found, hosts)
    return PlainUrls(rows, array, found, hosts, as_submitted=False).taken(hosts[:, 1] > 0)


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


class PlainRowJudge:
    """Judges by the rules of a profile; remembers what it found of hosts."""

    def __init__(self, tables: RuleTables, buckets: int) -> None:
        self._tables = tables
        self._buckets = buckets
        self._hosts: dict[str, tuple[str, int, int]] = {}

    @property
    def needs_submitted(self) -> bool:
        """Whether a rule judges URLs as they were submitted."""
        return self._tables.least_by_submitted < self._tables.none

    def judge(self, lines: Lines, urls: PlainUrls, dropped: Counter[str]) -> PlainRows:
        """Return those of some lines that make a link; count the others by the rule that drops them.

        The lines are good posts. Where a rule judges URLs as they were submitted, `urls` have to be so.
        """
        tables, rows = self._tables, urls.rows
        domains, host_places, host_buckets, codes = self._by_host(urls.column(urls.hosts))
        places = host_places[codes]
        self._judge_url_endings(urls, places)
        if tables.least_by_day < tables.none:
            days = np.searchsorted(np.array(tables.days), lines.created_utc[rows], side="right")
            np.minimum(places, np.array(tables.place_by_day)[days], out=places)
        if tables.over_18 < tables.none:
            places[lines.over_18[rows] & (places > tables.over_18)] = tables.over_18
        if tables.least_by_subreddit < tables.none:
            self._judge_subreddits(lines, rows, places)
        if tables.unlike:
            self._judge_patterns(urls, places)
        for place, count in enumerate(np.bincount(places, minlength=tables.none)[: tables.none].tolist()):
            if count:
                dropped[str(tables.names[place])] += count
        kept = places == tables.none
        batch = _batch(lines, urls.taken(kept), domains.take(pa.array(codes[kept])))
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

    def _judge_url_endings(self, urls: PlainUrls, places: Array) -> None:
        tables = self._tables
        if tables.extensions or tables.endings:
            found = np.zeros_like(urls.spans)
            extensions(urls.array, urls.spans, urls.hosts, found)
            encoded = urls.column(found).dictionary_encode()
            names = [name.lower() for name in encoded.dictionary.to_pylist()]
            # The ending of what was submitted is the extension of the canonical URL where the two are the same.
            by_code = [
                min(tables.extensions.get(name, tables.none), tables.endings.get(name, tables.none)) for name in names
            ]
            np.minimum(places, np.array(by_code, np.int64)[encoded.indices.to_numpy()], out=places)
        if tables.short:
            sizes = urls.spans[:, 1] - urls.spans[:, 0]
            limits = np.array([*tables.short, tables.none])
            np.minimum(places, limits[np.minimum(sizes, len(tables.short))], out=places)

    def _judge_subreddits(self, lines: Lines, rows: Array, places: Array) -> None:
        encoded = lines.text(SUBREDDIT, rows).dictionary_encode()
        by_code = np.array([self._tables.subreddits[name] for name in encoded.dictionary.to_pylist()], np.int64)
        np.minimum(places, by_code[encoded.indices.to_numpy()], out=places)

    def _judge_patterns(self, urls: PlainUrls, places: Array) -> None:
        texts = urls.column(urls.spans).to_pylist()
        for place, pattern in self._tables.unlike:
            for row in np.flatnonzero(places > place).tolist():
                if not pattern.fullmatch(texts[row]):
                    places[row] = place


def _batch(lines: Lines, urls: PlainUrls, domains: pa.StringArray) -> pa.RecordBatch:
    rows = urls.rows
    submitted = pa.nulls(len(rows), pa.string()) if urls.as_submitted else lines.column(lines.url_spans[rows])
    columns = {
        "url": urls.column(urls.spans),
        "original_url": submitted,
        "domain": domains,
        "score": pa.array(np.where(lines.has_score[rows], lines.score[rows], 0)),
        "id": lines.text(ID, rows),
        "subreddit": lines.text(SUBREDDIT, rows),
        "title": lines.text(TITLE, rows),
        "created_utc": pa.array(lines.created_utc[rows]),
        "over_18": pa.array(lines.over_18[rows]),
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in SUBMISSION_SCHEMA.names], schema=SUBMISSION_SCHEMA)
