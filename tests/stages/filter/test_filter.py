"""`webtext filter`: rules and thresholds, own rules, languages, quality, explanations, and errors."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from filter_run import GERMAN, PROSE, TEXTS, options, run, write_documents

from pipelines.engine.run import RunOptions
from pipelines.errors import InputError, UsageError
from pipelines.records.inputs import open_configured
from pipelines.stages.filter import stage
from pipelines.stages.filter.config import FilterConfig
from pipelines.stages.filter.languages import identify
from pipelines.stages.filter.quality import train_quality
from pipelines.stages.filter.stage import DocumentFilter, explain, sample_funnel
from webtext_cli.main import main


@pytest.fixture
def documents(tmp_path: Path) -> str:
    return write_documents(tmp_path)


def test_documents_get_the_domain_of_their_url(tmp_path: Path) -> None:
    rows = [
        {"text": PROSE, "url": "https://news.bbc.co.uk:8080/a"},
        {"text": PROSE, "url": "http://a.org/", "domain": "given"},
        {"text": PROSE, "url": "not a URL"},
        {"text": PROSE},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    pq.write_table(pa.Table.from_pylist(rows[:1]), tmp_path / "without.parquet")
    numbers = pa.table({"text": [PROSE], "url": ["http://a.org/"], "domain": [5]})
    pq.write_table(numbers, tmp_path / "numbers.parquet")
    expected = {"a.jsonl": ["bbc.co.uk", "given", None, None], "without.parquet": ["bbc.co.uk"], "numbers.parquet": [5]}
    for name, domains in expected.items():
        kept, _ = run(str(tmp_path / name), tmp_path / name.partition(".")[0])
        assert [row["domain"] for row in kept.values()] == domains


def test_the_default_rules_are_mild(documents: str, tmp_path: Path) -> None:
    kept, dropped = run(documents, tmp_path)
    assert [*kept] == ["prose", "german", "lines", "bracket"]
    assert kept["prose"] | {"text": ""} == {
        "id": "prose", "url": "http://a.org/prose", "domain": "a.org", "text": "", "score": 0, "removed_lines": 0,
    }  # fmt: skip
    assert {name: reason.partition(":")[0] for name, reason in dropped.items()} == {
        "short": "too_short", "numbers": "few_letters", "damaged": "damaged", "repeated": "mostly_repeated_lines",
    }  # fmt: skip
    assert dropped["short"] == "too_short: characters 10 is below 200"


def test_published_profiles_apply_in_their_order(documents: str, tmp_path: Path) -> None:
    kept, dropped = run(documents, tmp_path, profile=("gopher-repetition", "gopher-quality", "c4"))
    assert [*kept] == ["prose", "lines"]
    assert kept["lines"]["text"] == PROSE
    assert kept["lines"]["removed_lines"] == 3
    assert dropped["bracket"] == "curly_bracket: curly_brackets 1 is above 0"
    assert dropped["german"].startswith("too_few_words")
    assert dropped["repeated"].startswith("repeated_lines: duplicate_lines 0.9")


def test_only_a_language_is_kept(documents: str, tmp_path: Path) -> None:
    kept, dropped = run(documents, tmp_path, language=("de",), language_score=0.5)
    assert [*kept] == ["german"]
    assert dropped["prose"].startswith("language: en 1.0")


def test_all_languages_are_identified_and_kept(documents: str, tmp_path: Path) -> None:
    kept, dropped = run(documents, tmp_path, language=("all",), profile=("none",))
    assert (len(kept), dropped) == (len(TEXTS), {})
    assert {name: kept[name]["language"] for name in ("prose", "german", "numbers")} == {
        "prose": "en", "german": "de", "numbers": None,
    }  # fmt: skip
    assert kept["german"]["language_score"] == pytest.approx(1.0, abs=0.01)
    report = json.loads((tmp_path / "filter" / "report.json").read_text())
    assert report["languages"] == dict(Counter(row["language"] or "none" for row in kept.values()))
    assert "Language of kept documents" in (tmp_path / "filter" / "report.html").read_text()
    kept, dropped = run(documents, tmp_path / "sure", language=("all",), language_score=0.5, profile=("none",))
    assert {"prose", "german"} < kept.keys()
    assert dropped["numbers"] == "language: unknown 0.000"


def test_languages_are_identified_only_if_needed(
    documents: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identified: list[str] = []

    def record(texts: pa.StringArray) -> tuple[pa.StringArray, pa.FloatArray]:
        identified.extend(texts.to_pylist())
        return identify(texts)

    monkeypatch.setattr(stage, "identify", record)
    kept, _ = run(documents, tmp_path)
    assert not {"language", "language_score"} & kept["prose"].keys()
    report = json.loads((tmp_path / "filter" / "report.json").read_text())
    assert report["languages"] == {}
    assert "Language of kept documents" not in (tmp_path / "filter" / "report.html").read_text()
    config = FilterConfig(profile=("gopher-quality",))
    sample_funnel(DocumentFilter.open(config, None, None), open_configured(documents, config, options()), 3)
    assert not identified
    declared = tmp_path / "declared.jsonl"
    declared.write_text(json.dumps({"id": "a", "text": PROSE, "language": "fr"}) + "\n")
    kept, _ = run(str(declared), tmp_path / "declared")
    assert (kept["a"]["language"], identified) == ("fr", [])
    kept, _ = run(str(declared), tmp_path / "corrected", language=("en",))
    assert (kept["a"]["language"], identified) == ("en", [PROSE])
    identified.clear()
    kept, _ = run(documents, tmp_path / "kept", language=("de", "en"))
    assert identified == [TEXTS[name] for name in ("prose", "german", "lines", "bracket")]


def test_a_quality_model_keeps_what_resembles_the_good(documents: str, tmp_path: Path) -> None:
    for name, words in (("good", "reason evidence history science"), ("raw", "click here buy now cheap offer")):
        draw = words.split()
        texts = [
            " ".join(draw[(number + k * k) % len(draw)] for k in range(50)) + f" {number}" for number in range(200)
        ]
        pq.write_table(pa.table({"text": texts}), tmp_path / f"{name}.parquet")
    sides = [[str(tmp_path / f"{name}.parquet")] for name in ("good", "raw")]
    card = train_quality(*sides, str(tmp_path / "model"), FilterConfig(), options())
    assert card["held_out"]["roc_auc"] == 1.0
    model = str(tmp_path / "model")
    settings: dict[str, Any] = {"profile": ("none",), "quality_model": model}
    kept, dropped = run([side[0] for side in sides], tmp_path, **settings)
    assert all(reason.startswith("low_quality: quality 0.") for reason in dropped.values())
    names = Counter(id.partition(".")[0] for id in kept)
    assert names["good"] > 100 > 20 > names["raw"]
    assert run(sides[0][0], tmp_path / "alone", **settings)[0].keys() == {id for id in kept if id.startswith("good")}
    train_quality(*sides[::-1], model, FilterConfig(), RunOptions(overwrite=True))
    kept, _ = run([side[0] for side in sides], tmp_path / "reversed", **settings)
    assert len(kept) < 20  # of the first shard, which has the good ones


def test_a_document_is_explained_and_a_sample_is_shown_without_writing(documents: str, tmp_path: Path) -> None:
    config = FilterConfig(profile=("gopher-quality", "c4"))
    document_filter, source = DocumentFilter.open(config, None, None), open_configured(documents, config, options())
    explanation = explain(document_filter, source, "http://a.org/bracket")
    assert (explanation["id"], explanation["reason"]) == ("bracket", "curly_bracket")
    values = {rule["rule"]: (rule["value"], rule["drops"]) for rule in explanation["values"]}
    assert values["curly_bracket"] == (1.0, True)
    assert values["few_stop_words"] == (8.0, False)
    assert explain(document_filter, source, "prose")["reason"] is None
    with pytest.raises(InputError, match="nothing: no document of the input has this id or URL"):
        explain(document_filter, source, "nothing")
    funnel = sample_funnel(document_filter, source, 3)
    assert (funnel["documents"], funnel["dropped"]) == (3, {"too_few_words": 1, "few_alphabetic_words": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["docs.parquet"]


def test_the_report_has_the_documents_near_each_threshold(documents: str, tmp_path: Path) -> None:
    run(documents, tmp_path, set=(f"too_short={len(GERMAN) + 5}",))
    report = json.loads((tmp_path / "filter" / "report.json").read_text())
    assert report["reasons"] == {
        "kept": 3, "too_short": 2, "few_letters": 1, "damaged": 1, "mostly_repeated_lines": 1,
    }  # fmt: skip
    assert not any(report["qualities"])
    rules = {rule["rule"]: rule for rule in report["rules"]}
    _, dropped = rules["too_short"]["near"]
    assert [document["id"] for document in dropped] == ["german"]
    assert sum(rules["too_short"]["bins"]) == len(TEXTS)
    assert rules["too_short"]["fails"] == 2
    page = (tmp_path / "filter" / "report.html").read_text()
    assert "Die Katze des Hauses" in page
    run(documents, tmp_path / "none", profile=("none",))
    assert "0 documents" not in (tmp_path / "none" / "filter" / "report.html").read_text()


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"profile": ("gopher",)}, "--profile gopher: unknown profile; did you mean gopher-quality"),
        ({"set": ("too_shrt=3",)}, "--set too_shrt: unknown rule; did you mean too_short"),
        ({"set": ("nonesuch=1",)}, "--set nonesuch: unknown rule; known: too_short, few_letters, damaged, mostly_rep"),
        ({"set": ("too_short=abc",)}, "--set too_short=abc: is neither RULE=NUMBER nor RULE=off"),
        ({"rule": ("nothing",)}, "--rule nothing: unknown rule"),
        ({"rule": ("curly_bracket",)}, "--rule curly_bracket: is computed while lines are removed"),
        ({"language": ("EN",)}, "--language EN: unknown language; use en"),
        ({"language": ("german",)}, "--language german: unknown language; use de"),
        ({"language": ("klingon",)}, "--language klingon: unknown language; use a code of ISO 639-1, such as en"),
        ({"set": ("too_short",)}, "--set too_short: is neither RULE=NUMBER nor RULE=off"),
        ({"set": ("too_few_wrds=3",)}, "--set too_few_wrds: unknown rule; did you mean too_few_words"),
        ({"set": ("too_short=nan",)}, "rule too_short: its threshold is nan, which is not a finite number"),
        ({"set": ("damaged=inf",)}, "rule damaged: its threshold is inf, which is not a finite number"),
        ({"quality_alpha": 5.0}, "--quality-alpha needs --quality-model"),
        ({"profile": ("c4", "webtext", "c4")}, "--profile: c4 is given twice"),
        ({"set": ("too_short=1", "too_short=2")}, "--set too_short=2: too_short is set twice"),
        ({"set": ("hashes=1",)}, "--set hashes=1: no profile of this run has a rule hashes"),
        ({"rule": ("too_short",)}, "--rule too_short: is already a rule of this run"),
        ({"rule": ("hashes", "hashes")}, "--rule hashes: is already a rule of this run"),
    ],
)
def test_wrong_options_are_named(documents: str, tmp_path: Path, config: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        run(documents, tmp_path, **config)


def test_a_column_url_may_have_another_type(tmp_path: Path) -> None:
    path = str(tmp_path / "docs.parquet")
    pq.write_table(pa.table({"id": ["a", "b"], "url": [1, 2], "text": [PROSE, GERMAN]}), path)
    config = FilterConfig(language=("de",))
    explanation = explain(DocumentFilter.open(config, None, None), open_configured(path, config, options()), "2")
    assert (explanation["id"], explanation["url"], explanation["measured"]["language"]) == ("b", "2", "de")


def test_only_what_is_measured_is_explained(tmp_path: Path) -> None:
    columns = {"id": ["a"], "text": [PROSE], "quality": [0.5], "language": ["fr"]}
    pq.write_table(pa.table(columns), tmp_path / "docs.parquet")
    config = FilterConfig()
    source = open_configured(str(tmp_path / "docs.parquet"), config, options())
    measured = explain(DocumentFilter.open(config, None, None), source, "a")["measured"]
    assert measured == {"removed_lines": 0}


def test_documents_are_counted_and_dropped_by_what_is_left_of_their_text(tmp_path: Path) -> None:
    texts = [f"{PROSE}\nHome | About us", PROSE, "Home\nAbout us"]
    pq.write_table(pa.table({"id": ["a", "b", "c"], "text": texts, "words": [71, 68, 3]}), tmp_path / "docs.parquet")
    source, settings = str(tmp_path / "docs.parquet"), {"profile": ("c4",), "set": ("too_few_sentences=off",)}
    kept, dropped = run(source, tmp_path, **settings)
    assert {id: row["words"] for id, row in kept.items()} == {id: len(PROSE.split()) for id in ("a", "b")}
    assert dropped == {"c": "empty_text: None"}
    config = FilterConfig(**settings)
    funnel = sample_funnel(DocumentFilter.open(config, None, None), open_configured(source, config, options()), 3)
    assert funnel["dropped"] == {"empty_text": 1}


def test_a_detail_tells_a_value_from_the_threshold(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a", "b"], "text": [PROSE, "word " * 100_002]}), tmp_path / "docs.parquet")
    _, dropped = run(str(tmp_path / "docs.parquet"), tmp_path, profile=("gopher-quality",))
    assert dropped == {"b": "too_many_words: words 100002 is above 100000"}


def test_documents_with_the_same_id_can_be_near_a_threshold(tmp_path: Path) -> None:
    texts = [f"{number:3} {PROSE}"[: 195 + number % 10] for number in range(40)]
    pq.write_table(pa.table({"id": ["same"] * 40, "text": texts}), tmp_path / "docs.parquet")
    kept, dropped = run(str(tmp_path / "docs.parquet"), tmp_path)
    assert [*kept] == [*dropped] == ["same"]
    report = json.loads((tmp_path / "filter" / "report.json").read_text())
    assert [len(side) for side in report["rules"][0]["near"]] == [10, 10]


def test_a_sample_has_as_many_documents_as_it_should(tmp_path: Path) -> None:
    sizes = (2, 50, 1, 50, 50)
    for number, size in enumerate(sizes):
        path = tmp_path / "docs" / f"{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        rows = pa.table({"id": [f"{number}-{row}" for row in range(size)], "text": [PROSE] * size})
        pq.write_table(rows, path, row_group_size=10)
    config = FilterConfig()
    source = open_configured(str(tmp_path / "docs"), config, options())
    shards = tuple(dataclasses.replace(source.shards[0], index=n, files=(file,)) for n, file in enumerate(source.files))
    source = dataclasses.replace(source, shards=shards)
    document_filter = DocumentFilter.open(config, None, None)
    wanted = {1: 1, 3: 3, 10: 10, 100: 100, 1000: sum(sizes)}
    assert {count: sample_funnel(document_filter, source, count)["documents"] for count in wanted} == wanted


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--sample", "5"], "--sample has no effect without --dry-run"),
        (["--language-score", "0.5"], "--language-score has no effect without --language"),
        (["--dry-run", "--output", "x"], "--explain and --dry-run write nothing; omit --output"),
        (["--explain", "prose", "--overwrite"], "--explain and --dry-run write nothing"),
        (["--explain", "prose", "--dry-run"], "cannot be combined"),
        (["--train-quality", "good.jsonl"], "--train-quality and --unfiltered must be used together"),
        (["--train-quality", "a", "--unfiltered", "b", "-o", "m", "--profile", "c4"], "--profile has no effect with"),
        (["--train-quality", "a", "--unfiltered", "b", "-o", "m", "--input", "c"], "--input has no effect with"),
        (["--train-quality", "a", "--unfiltered", "b", "-o", "m", "--quality-alpha", "2"], "--quality-alpha has no"),
        (["--train-quality", "a", "--unfiltered", "b"], "--train-quality needs --output"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    options: list[str],
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["filter", *options]) == 2
    assert problem in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


def test_removed_lines_are_those_of_documents_that_are_kept(documents: str, tmp_path: Path) -> None:
    kept, _ = run(documents, tmp_path, profile=("c4",))
    manifest = json.loads((tmp_path / "filter" / "manifest.json").read_text())
    assert manifest["counts"]["removed_lines"] == sum(row["removed_lines"] for row in kept.values()) > 0


def test_an_unknown_rule_is_answered_by_each_known_one_once() -> None:
    with pytest.raises(UsageError, match="known: ") as raised:
        DocumentFilter.open(FilterConfig(set=("nonesuch=1",)), None, None)
    known = str(raised.value).partition("known: ")[2].split(", ")
    assert len(known) == len({*known}) > 30
