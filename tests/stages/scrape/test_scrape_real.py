"""Real dumps, against a count of plain Python that shares no code with the stage."""

from __future__ import annotations

import html
import json
import lzma
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

import pyarrow.parquet as pq
import pytest
import zstandard

from pipelines.engine.run import RunOptions
from pipelines.stages.scrape.config import ScrapeConfig
from pipelines.stages.scrape.stage import scrape
from pipelines.storage.resources import data_path

_SAFE = "!$&'()*+,;=:@/?-._~"
_TRACKING = re.compile(
    r"utm_.*|fb_action_ids|fb_action_types|fb_source|fb_ref|gclid|fbclid|_openstat|mkt_tok|s_cid|gs_l", re.I
)

# The dumps' registered domains that the profile names, without a public suffix list.
_LISTED = tomllib.loads(Path(data_path("profiles/webtext-2019.toml")).read_text())["rule"]


def _records(path: Path) -> Iterator[dict[str, Any]]:
    data = path.read_bytes()
    if path.suffix == ".zst":
        data = zstandard.ZstdDecompressor().stream_reader(data).read()
    if path.suffix == ".xz":
        data = lzma.decompress(data)
    for line in data.split(b"\n"):
        if line.strip():
            yield json.loads(line)


def _quoted(text: str) -> str:
    parts = re.split(r"(%[0-9A-Fa-f]{2})", text)
    for place, part in enumerate(parts):
        if place % 2 == 0:
            parts[place] = quote(part, safe=_SAFE)
        elif re.fullmatch(r"[A-Za-z0-9._~-]", chr(int(part[1:], 16))):
            parts[place] = chr(int(part[1:], 16))
        else:
            parts[place] = part.upper()
    return "".join(parts)


def _canonical(url: str) -> str | None:
    """Return the canonical form of a URL by the standard library's parser."""
    while (unescaped := re.sub(r"&[#\w]+;", lambda match: html.unescape(match[0]), url)) != url:
        url = unescaped
    try:
        parts = urlsplit(url.strip(" \u200e"))
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not re.fullmatch(r"[a-z0-9_.-]+", host) or ".." in host:
        return None
    if port not in (None, {"http": 80, "https": 443}[parts.scheme]):
        host += f":{port}"
    path = _quoted(parts.path.replace("\\", "/")) or "/"
    if "/." in path:
        path = urlsplit(urljoin("http://h/", path)).path
    pairs = _quoted(parts.query).replace("%27", "'").split("&")
    pairs = [pair for pair in pairs if pair and not _TRACKING.fullmatch(pair.split("=")[0])]
    kept = f"#{_quoted(parts.fragment)}" if re.match(r"!.", parts.fragment) else ""
    return f"{parts.scheme}://{host}{path}" + ("?" + "&".join(pairs) if pairs else "") + kept


def _banned(url: str, record: dict[str, Any]) -> str | None:
    host = urlsplit(url).hostname or ""
    last = urlsplit(url).path.rsplit("/", 1)[-1]
    for rule in _LISTED:
        if any(host == domain or host.endswith(f".{domain}") for domain in rule.get("domains", ())):
            return rule["name"]
        if "." in last and last.rsplit(".", 1)[1].lower() in rule.get("extensions", ()):
            return rule["name"]
        if rule.get("over_18") and record["over_18"]:
            return rule["name"]
        name = record["subreddit"].lower()
        if name in rule.get("subreddits", ()):
            return rule["name"]
        if name not in rule.get("except_subreddits", ()) and any(
            word in name for word in rule.get("subreddit_words", ())
        ):
            return rule["name"]
        if "created_from" in rule and int(record["created_utc"]) >= 1514764800:
            return rule["name"]
    return None


def _expected(paths: list[Path], karma: str, profile: str) -> tuple[int, Counter[str], dict[str, tuple[int, set[str]]]]:
    """Return the submissions, the drops by reason, and each link with its score and ids."""
    total = 0
    dropped: Counter[str] = Counter()
    by_url: dict[str, dict[str, tuple[int, int]]] = {}
    for record in (record for path in paths for record in _records(path)):
        total += 1
        if record["is_self"]:
            dropped["self_post"] += 1
        elif karma == "max" and record["score"] < 3:
            dropped["low_score"] += 1
        elif (url := _canonical(record["url"])) is None:
            dropped["not_http"] += 1
        elif profile != "none" and (reason := _banned(url, record)):
            dropped[reason] += 1
        else:
            known = by_url.setdefault(url, {})
            dropped["duplicate_submission"] += record["id"] in known
            score = max(record["score"], known.get(record["id"], (0, 0))[1])
            known[record["id"]] = (int(record["created_utc"]), score)
    links = {}
    for url, known in by_url.items():
        scores = [score for _, _, score in sorted((second, id, score) for id, (second, score) in known.items())]
        score = {"max": max(scores), "sum": sum(scores), "first": scores[0]}[karma]
        if score < 3:
            dropped["low_score"] += len(scores)
        else:
            dropped["merged_into_link"] += len(scores) - 1
            links[url] = (score, set(known))
    return total, +dropped, links


def _check(paths: list[Path], output: Path, karma: str, profile: str) -> None:
    total, dropped, links = _expected(paths, karma, profile)
    summary = scrape(
        ScrapeConfig(karma=karma, profile=profile, shards=8),
        dumps=[str(path) for path in paths],
        output=str(output),
        options=RunOptions(),
    )
    assert (summary.records_in, summary.records_out, summary.dropped) == (total, len(links), dropped)
    rows = [row for path in sorted(output.glob("links-*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert {row["url"]: (row["score"], set(row["submission_ids"])) for row in rows} == links
    assert all(_canonical(row["original_url"]) == row["url"] for row in rows)


@pytest.mark.parametrize("karma", ["max", "sum", "first"])
def test_the_dumps_of_2005_and_2024_match_a_plain_count(shared_data: Path, tmp_path: Path, karma: str) -> None:
    names = ["RS_v2_2005-06.xz", "RS_v2_2005-07.xz", "sample-2024.json"]
    _check([shared_data / "reddit" / name for name in names], tmp_path, karma, "none")


def test_the_dumps_of_2005_contain_840_links_with_three_points(shared_data: Path, tmp_path: Path) -> None:
    paths = [shared_data / "reddit" / f"RS_v2_2005-{month}.xz" for month in ("06", "07")]
    _, dropped, links = _expected(paths, "max", "none")
    assert len(links) + dropped["merged_into_link"] + dropped["duplicate_submission"] == 83 + 757
    _check(paths, tmp_path, "max", "none")


def test_real_submissions_of_2013_match_a_plain_count(shared_data: Path, tmp_path: Path) -> None:
    data = (shared_data / "reddit" / "submissions-2013.ndjson.zst").read_bytes()
    lines = zstandard.ZstdDecompressor().stream_reader(data).read().splitlines(keepends=True)
    sample = tmp_path / "submissions-2013.ndjson"
    sample.write_bytes(b"".join(lines[::5]))
    _check([sample], tmp_path / "links", "max", "webtext-2019")


@pytest.mark.slow
@pytest.mark.parametrize(("karma", "profile"), [("max", "webtext-2019"), ("sum", "none")])
def test_97_888_real_submissions_match_a_plain_count(
    shared_data: Path, tmp_path: Path, karma: str, profile: str
) -> None:
    _check([shared_data / "reddit" / "submissions-2013.ndjson.zst"], tmp_path, karma, profile)


def test_the_result_does_not_depend_on_the_order_of_real_dumps(shared_data: Path, tmp_path: Path) -> None:
    names = ["RS_v2_2005-06.xz", "RS_v2_2005-07.xz", "sample-2024.json"]
    dumps = [str(shared_data / "reddit" / name) for name in names]
    for output, order in (("one", dumps), ("two", dumps[::-1])):
        scrape(ScrapeConfig(profile="none"), dumps=order, output=str(tmp_path / output), options=RunOptions())
    assert (tmp_path / "one" / "manifest.json").read_bytes() == (tmp_path / "two" / "manifest.json").read_bytes()
    for path in (tmp_path / "one").glob("*.parquet"):
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()
