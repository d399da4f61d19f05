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

from pipelines.engine.executor import make_executor
from pipelines.engine.run import RunOptions
from pipelines.errors import InputError, UsageError
from pipelines.records.inputs import open_configured
from pipelines.stages.filter.config import FilterConfig
from pipelines.stages.filter.quality import train_quality
from pipelines.stages.filter.rules import load_rules, read_profile
from pipelines.stages.filter.stage import DocumentFilter, explain, sample_funnel
from pipelines.stages.filter.stage import filter as filter_documents
from pipelines.storage.resources import data_names
from webtext_cli.main import main

_PROSE = (
    "The cat of the house sat on the mat, and it was warm there. Nobody knew that the dog would be back so soon. "
    "They have to share the place with each other, which is not easy. It rained all day, so both stayed inside. "
    "In the evening the sun came out! Would they go for a walk together? They did, and were friends from then on."
)
_GERMAN = (
    "Die Katze des Hauses saß auf der Matte, und es war warm dort. Niemand wusste, dass der Hund so bald zurück sein "
    "würde. Sie müssen sich den Platz teilen, was nicht einfach ist. Es regnete den ganzen Tag, und beide blieben drin."
)
_TEXTS = {
    "prose": _PROSE,
    "short": "Too short.",
    "numbers": "12.50 13.75 100 200 | 14 15 16 --- " * 20,
    "damaged": "caf\u00c3\u00a9 na\u00c3\u00afve \ufffd \u00e2\u20ac\u2122 words " * 10 + _PROSE,
    "repeated": "Buy our very good product now, it is the best of all, they say. \n" * 20,
    "german": _GERMAN,
    "lines": f"Home | About us\n{_PROSE}\nread more\nPlease enable javascript to see this page in full.",
    "bracket": f"{_PROSE}\nIt has a function {{ return 1; }} in it, and ends well.",
}


_RULE = '[[rule]]\nname = "{}"\nstatistic = "words"\nmin = 1\n'


@pytest.fixture
def documents(tmp_path: Path) -> str:
    path = tmp_path / "docs.parquet"
    urls = [f"http://a.org/{name}" for name in _TEXTS]
    pq.write_table(pa.table({"id": list(_TEXTS), "url": urls, "text": list(_TEXTS.values()), "score": range(8)}), path)
    return str(path)


def _options() -> RunOptions:
    return RunOptions(executor=make_executor(1))


def _filter(
    documents: str | list[str], tmp_path: Path, **config: Any
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the kept rows by id, and the reasons of the dropped."""
    files = {name: config.pop(name) for name in ("rules", "quality_model") if name in config}
    output = str(tmp_path / "filter")
    filter_documents(FilterConfig(**config), documents=documents, output=output, options=_options(), **files)
    kept = pq.read_table(Path(output, "documents-00000.parquet")).to_pylist()
    dropped = pq.read_table(Path(output, "dropped-00000.parquet")).to_pylist()
    return {row["id"]: row for row in kept}, {row["id"]: f"{row['reason']}: {row['detail']}" for row in dropped}


def test_the_default_rules_are_mild(documents: str, tmp_path: Path) -> None:
    kept, dropped = _filter(documents, tmp_path)
    assert [*kept] == ["prose", "german", "lines", "bracket"]
    assert kept["prose"] | {"text": ""} == {
        "id": "prose", "url": "http://a.org/prose", "text": "", "score": 0, "removed_lines": 0, "language": "en",
        "language_score": pytest.approx(1.0, abs=0.01),
    }  # fmt: skip
    assert {name: reason.partition(":")[0] for name, reason in dropped.items()} == {
        "short": "too_short", "numbers": "few_letters", "damaged": "damaged", "repeated": "mostly_repeated_lines",
    }  # fmt: skip
    assert dropped["short"] == "too_short: characters 10 is below 200"


def test_published_profiles_apply_in_their_order(documents: str, tmp_path: Path) -> None:
    kept, dropped = _filter(documents, tmp_path, profile=("gopher-repetition", "gopher-quality", "c4"))
    assert [*kept] == ["prose", "lines"]
    assert kept["lines"]["text"] == _PROSE
    assert kept["lines"]["removed_lines"] == 3
    assert dropped["bracket"] == "curly_bracket: curly_brackets 1 is above 0"
    assert dropped["german"].startswith("too_few_words")
    assert dropped["repeated"].startswith("repeated_lines: duplicate_lines 0.9")


def test_thresholds_rules_and_functions_are_changed_by_options(documents: str, tmp_path: Path) -> None:
    own = tmp_path / "my_rules.py"
    own.write_text(
        "import re\n\n\ndef of_cats(document):\n"
        "    return 'cat' in document.text and not document.metadata['score']\n\n\n"
        "def sentences(document):\n    return len(re.findall('[.!?]', document.text))\n\n\nsentences.max = 12\n"
    )
    settings = {
        "set": ("too_short=5", "few_letters=off", "damaged=off", "mostly_repeated_lines=1", "repeated_passages=off")
    }
    _, dropped = _filter(documents, tmp_path, rules=str(own), **settings)
    assert dropped == {
        "prose": "of_cats: own.of_cats 1 is above 0",
        "numbers": "sentences: own.sentences 40 is above 12",
        "repeated": "sentences: own.sentences 20 is above 12",
    }
    (tmp_path / "one").mkdir()
    rules = ("few_stop_words", "of_cats")
    _, dropped = _filter(documents, tmp_path / "one", profile=("none",), rule=rules, rules=str(own))
    assert [*dropped] == ["prose", "short", "numbers", "german"]
    rule_set = load_rules(["none"], ["hashes"], [], str(own))
    assert [rule.name for rule in rule_set.rules] == ["hashes", "of_cats", "sentences"]


def test_only_a_language_is_kept(documents: str, tmp_path: Path) -> None:
    kept, dropped = _filter(documents, tmp_path, language=("de",), language_score=0.5)
    assert [*kept] == ["german"]
    assert dropped["prose"].startswith("language: en 1.0")


def test_a_quality_model_keeps_what_resembles_the_good(documents: str, tmp_path: Path) -> None:
    for name, words in (("good", "reason evidence history science"), ("raw", "click here buy now cheap offer")):
        draw = words.split()
        texts = [
            " ".join(draw[(number + k * k) % len(draw)] for k in range(50)) + f" {number}" for number in range(200)
        ]
        pq.write_table(pa.table({"text": texts}), tmp_path / f"{name}.parquet")
    sides = [[str(tmp_path / f"{name}.parquet")] for name in ("good", "raw")]
    card = train_quality(*sides, str(tmp_path / "model"), FilterConfig(), _options())
    assert card["held_out"]["roc_auc"] == 1.0
    model = str(tmp_path / "model")
    settings: dict[str, Any] = {"profile": ("none",), "quality_model": model}
    kept, dropped = _filter([side[0] for side in sides], tmp_path, **settings)
    assert all(reason.startswith("low_quality: quality 0.") for reason in dropped.values())
    names = Counter(id.partition(".")[0] for id in kept)
    assert names["good"] > 100 > 20 > names["raw"]
    assert _filter(sides[0][0], tmp_path / "alone", **settings)[0].keys() == {
        id for id in kept if id.startswith("good")
    }
    train_quality(*sides[::-1], model, FilterConfig(), RunOptions(overwrite=True))
    kept, _ = _filter([side[0] for side in sides], tmp_path / "reversed", **settings)
    assert len(kept) < 20  # of the first shard, which has the good ones


def test_a_document_is_explained_and_a_sample_is_shown_without_writing(documents: str, tmp_path: Path) -> None:
    config = FilterConfig(profile=("gopher-quality", "c4"))
    document_filter, source = DocumentFilter.open(config, None, None), open_configured(documents, config, _options())
    explanation = explain(document_filter, source, "http://a.org/bracket")
    assert (explanation["id"], explanation["reason"]) == ("bracket", "curly_bracket")
    values = {rule["rule"]: (rule["value"], rule["drops"]) for rule in explanation["values"]}
    assert values["curly_bracket"] == (1.0, True)
    assert values["few_stop_words"] == (8.0, False)
    assert explain(document_filter, source, "prose")["reason"] is None
    with pytest.raises(InputError, match="nothing: no document has this id or URL"):
        explain(document_filter, source, "nothing")
    funnel = sample_funnel(document_filter, source, 3)
    assert (funnel["documents"], funnel["dropped"]) == (3, {"too_few_words": 1, "few_alphabetic_words": 1})
    assert [path.name for path in tmp_path.iterdir()] == ["docs.parquet"]


def test_the_report_has_the_documents_near_each_threshold(documents: str, tmp_path: Path) -> None:
    _filter(documents, tmp_path, set=(f"too_short={len(_GERMAN) + 5}",))
    report = json.loads((tmp_path / "filter" / "report.json").read_text())
    assert report["reasons"] == {
        "kept": 3, "too_short": 2, "few_letters": 1, "damaged": 1, "mostly_repeated_lines": 1,
    }  # fmt: skip
    assert report["languages"] == {"en": 3}
    assert not any(report["qualities"])
    rules = {rule["rule"]: rule for rule in report["rules"]}
    _, dropped = rules["too_short"]["near"]
    assert [document["id"] for document in dropped] == ["german"]
    assert sum(rules["too_short"]["bins"]) == len(_TEXTS)
    assert rules["too_short"]["fails"] == 2
    page = (tmp_path / "filter" / "report.html").read_text()
    assert "Die Katze des Hauses" in page
    _filter(documents, tmp_path / "none", profile=("none",))
    assert "0 documents" not in (tmp_path / "none" / "filter" / "report.html").read_text()


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"profile": ("gopher",)}, "--profile: unknown profile 'gopher'; did you mean gopher-quality"),
        ({"set": ("too_shrt=3",)}, "--set: unknown rule 'too_shrt'; did you mean too_short"),
        ({"set": ("too_short=abc",)}, "--set too_short=abc: is neither RULE=NUMBER nor RULE=off"),
        ({"rule": ("nothing",)}, "--rule: unknown rule 'nothing'"),
        ({"rule": ("curly_bracket",)}, "--rule curly_bracket: is counted while lines are removed; name its profile"),
        ({"language": ("EN",)}, "--language: unknown language 'EN'; did you mean en"),
        ({"language": ("english",)}, "--language: unknown language 'english'"),
        ({"set": ("too_short=nan",)}, "rule too_short: its threshold is nan, which is not a finite number"),
        ({"set": ("damaged=inf",)}, "rule damaged: its threshold is inf, which is not a finite number"),
        ({"quality_alpha": 5.0}, "--quality-alpha needs --quality-model"),
        ({"profile": ("c4", "webtext", "c4")}, "--profile: c4 is named twice"),
        ({"set": ("too_short=1", "too_short=2")}, "--set too_short=2: too_short is set twice"),
        ({"set": ("hashes=1",)}, "--set hashes=1: the profiles of this run have no rule hashes; add it with --rule"),
        ({"rule": ("too_short",)}, "--rule too_short: is a rule of this run already"),
        ({"rule": ("hashes", "hashes")}, "--rule hashes: is a rule of this run already"),
    ],
)
def test_wrong_options_are_named(documents: str, tmp_path: Path, config: dict[str, Any], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        _filter(documents, tmp_path, **config)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("p.toml", "version = 1", "is not a profile of rules .*description"),
        ("p.toml", "version = [", "is not a profile of rules"),
        (
            "p.toml",
            "version = 1\ndescription = ''\n[[rule]]\nname = 'a'\nstatistic = 'words'",
            "needs either min or max",
        ),
        ("r.py", "def x(:", "cannot be run .SyntaxError"),
        ("r.py", "1 / 0", "cannot be run .ZeroDivisionError"),
        ("r.py", "raise SystemExit", "cannot be run .SystemExit"),
        ("r.py", "def x(document):\n    raise SystemExit", "x raised SystemExit: .*for document prose"),
        ("r.py", "x = 3", "defines no function"),
        (
            "r.py",
            "def x(document):\n    return 'a'",
            "x returned 'a' for document prose, which is neither a finite number nor",
        ),
        ("r.py", "def x(document):\n    return None", "x returned None for document prose"),
        ("r.py", "def x(document):\n    return float('nan')", "x returned nan for document prose"),
        ("r.py", "def x(document):\n    return float('inf')", "x returned inf for document prose"),
        ("r.py", "def x(document):\n    return 0.7", "x returned 0.7 .* a number, but there is no x.max or x.min"),
        ("r.py", "def x(document):\n    return 10**400", "x raised OverflowError: .* for document prose"),
        ("r.py", "def x(document):\n    return document.metadata['a']", "x raised KeyError: 'a' for document prose"),
        ("p.toml", f"version = 1\ndescription = ''\n{_RULE.format('language')}", "language is the name of another"),
        ("p.toml", f"version = 1\ndescription = ''\n{_RULE.format('a') * 2}", "a is the name of another rule"),
        ("p.toml", f"version = 1\ndescription = ''\n{_RULE.format('too short!')}", "is not a profile of rules .*name"),
        (
            "p.toml",
            f"version = 1\ndescription = ''\n{_RULE.format('a').replace('words', 'sentences')}",
            r"rule a: sentences needs a table \[lines\]",
        ),
        ("p.toml", "version = 1\ndescription = ''\n[lines]\nphrases = ['']", "not a profile of rules .*lines.phrases"),
        ("p.toml", f"version = 1\ndescription = ''\n[lines]\nphrases = {['a'] * 63}", "lines.phrases"),
        ("p.toml", f"version = 1\ndescription = ''\n[lines]\nmin_words = {2**64}", "lines.min_words"),
        ("p.toml", "version = 1\ndescription = ''\n[lines]\nmin_word = 5", "unknown field .min_word. .*lines"),
    ],
)
def test_wrong_files_are_named(documents: str, tmp_path: Path, name: str, content: str, problem: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    config: dict[str, Any] = {"profile": (str(path),)} if name == "p.toml" else {"rules": str(path)}
    with pytest.raises(InputError, match=f"{name}.*{problem}"):
        _filter(documents, tmp_path, **config)


def test_a_threshold_of_a_function_is_a_number(documents: str, tmp_path: Path) -> None:
    own = tmp_path / "r.py"
    own.write_text("def x(document):\n    return 1\n\n\nx.max = '2'\n")
    with pytest.raises(UsageError, match="rule x: its threshold is '2', which is not a finite number"):
        _filter(documents, tmp_path, rules=str(own))


@pytest.mark.parametrize("name", ["too_short", "language", "low_quality", "empty_text"])
def test_a_function_has_a_name_of_its_own(documents: str, tmp_path: Path, name: str) -> None:
    own = tmp_path / "r.py"
    own.write_text(f"def {name}(document):\n    return 1\n")
    with pytest.raises(UsageError, match=f"r.py: {name} is the name of a rule or reason already; rename the function"):
        _filter(documents, tmp_path, rules=str(own))


def test_rules_of_the_same_name_are_the_same() -> None:
    rules = {}
    for name in data_names("filters"):
        for rule in read_profile(name).rule:
            assert rules.setdefault(rule.name, rule) == rule


def test_a_column_url_may_have_another_type(tmp_path: Path) -> None:
    path = str(tmp_path / "docs.parquet")
    pq.write_table(pa.table({"id": ["a", "b"], "url": [1, 2], "text": [_PROSE, _GERMAN]}), path)
    config = FilterConfig()
    explanation = explain(DocumentFilter.open(config, None, None), open_configured(path, config, _options()), "2")
    assert (explanation["id"], explanation["url"], explanation["measured"]["language"]) == ("b", "2", "de")


def test_a_file_of_rules_may_define_dataclasses(documents: str, tmp_path: Path) -> None:
    own = tmp_path / "r.py"
    own.write_text(
        "from __future__ import annotations\nimport dataclasses\n\n\n@dataclasses.dataclass\nclass Limit:\n"
        "    size: int\n\n\ndef short(document):\n    return len(document.text) < Limit(50).size\n"
    )
    _, dropped = _filter(documents, tmp_path, profile=("none",), rules=str(own))
    assert [*dropped] == ["short"]


def test_documents_are_counted_and_dropped_by_what_is_left_of_their_text(tmp_path: Path) -> None:
    texts = [f"{_PROSE}\nHome | About us", _PROSE, "Home\nAbout us"]
    pq.write_table(pa.table({"id": ["a", "b", "c"], "text": texts, "words": [71, 68, 3]}), tmp_path / "docs.parquet")
    source, settings = str(tmp_path / "docs.parquet"), {"profile": ("c4",), "set": ("too_few_sentences=off",)}
    kept, dropped = _filter(source, tmp_path, **settings)
    assert {id: row["words"] for id, row in kept.items()} == {id: len(_PROSE.split()) for id in ("a", "b")}
    assert dropped == {"c": "empty_text: None"}
    config = FilterConfig(**settings)
    funnel = sample_funnel(DocumentFilter.open(config, None, None), open_configured(source, config, _options()), 3)
    assert funnel["dropped"] == {"empty_text": 1}


def test_a_detail_tells_a_value_from_the_threshold(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": ["a", "b"], "text": [_PROSE, "word " * 100_002]}), tmp_path / "docs.parquet")
    _, dropped = _filter(str(tmp_path / "docs.parquet"), tmp_path, profile=("gopher-quality",))
    assert dropped == {"b": "too_many_words: words 100002 is above 100000"}


def test_functions_may_return_numbers_of_numpy(documents: str, tmp_path: Path) -> None:
    own = tmp_path / "r.py"
    own.write_text(
        "import numpy as np\n\n\ndef long(document):\n    return np.bool_(len(document.text) > 1000)\n\n\n"
        "def size(document):\n    return np.float32(len(document.text))\n\n\nsize.min = 50\n"
    )
    _, dropped = _filter(documents, tmp_path, profile=("none",), rules=str(own))
    assert dropped["short"] == "size: own.size 10 is below 50"
    assert dropped["repeated"] == "long: own.long 1 is above 0"


def test_documents_with_the_same_id_can_be_near_a_threshold(tmp_path: Path) -> None:
    texts = [f"{number:3} {_PROSE}"[: 195 + number % 10] for number in range(40)]
    pq.write_table(pa.table({"id": ["same"] * 40, "text": texts}), tmp_path / "docs.parquet")
    kept, dropped = _filter(str(tmp_path / "docs.parquet"), tmp_path)
    assert [*kept] == [*dropped] == ["same"]
    report = json.loads((tmp_path / "filter" / "report.json").read_text())
    assert [len(side) for side in report["rules"][0]["near"]] == [10, 10]


def test_files_that_change_between_runs_of_a_process_are_read_again(documents: str, tmp_path: Path) -> None:
    own, profile = tmp_path / "r.py", tmp_path / "p.toml"
    for number, word in enumerate(("cat", "Katze")):
        own.write_text(f"def of_cats(document):\n    return '{word}' in document.text\n")
        profile.write_text(
            f"version = 1\ndescription = ''\n[[rule]]\nname = 'a'\nstatistic = 'words'\nmin = {5 + number}\n"
        )
        _, dropped = _filter(documents, tmp_path / str(number), profile=(str(profile),), rules=str(own))
        assert ("german" in dropped) == (word == "Katze")
        assert dropped["short"] == f"a: words 2 is below {5 + number}"


def test_every_profile_names_its_sources() -> None:
    names = data_names("filters")
    assert {*names} == {"webtext", "gopher-quality", "gopher-repetition", "c4", "fineweb", "none"}
    for name in names:
        assert all(rule.source for rule in read_profile(name).rule)
        rules = load_rules([name], [], [], None).rules
        assert len({rule.name for rule in rules}) == len(read_profile(name).rule)


def test_a_sample_has_as_many_documents_as_it_should(tmp_path: Path) -> None:
    sizes = (2, 50, 1, 50, 50)
    for number, size in enumerate(sizes):
        path = tmp_path / "docs" / f"{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        rows = pa.table({"id": [f"{number}-{row}" for row in range(size)], "text": [_PROSE] * size})
        pq.write_table(rows, path, row_group_size=10)
    config = FilterConfig()
    source = open_configured(str(tmp_path / "docs"), config, _options())
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
        (["--explain", "prose", "--dry-run"], "exclude each other"),
        (["--train-quality", "good.jsonl"], "--train-quality and --against belong together"),
        (["--train-quality", "a", "--against", "b", "-o", "m", "--profile", "c4"], "--profile has no effect with"),
        (["--train-quality", "a", "--against", "b", "-o", "m", "--input", "c"], "--input has no effect with"),
        (["--train-quality", "a", "--against", "b", "-o", "m", "--quality-alpha", "2"], "--quality-alpha has no"),
        (["--train-quality", "a", "--against", "b"], "--train-quality needs --output"),
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


def test_functions_see_further_fields_of_jsonl_and_print_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": str(number), "text": _PROSE, "likes": number} for number in range(3)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = tmp_path / "r.py"
    own.write_text("print('loaded')\ndef liked(document):\n    return document.metadata['likes']\nliked.min = 2\n")
    _, dropped = _filter(str(tmp_path / "docs.jsonl"), tmp_path, rules=str(own))
    assert [*dropped] == ["0", "1"]
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "loaded\n")


def test_removed_lines_are_those_of_documents_that_are_kept(documents: str, tmp_path: Path) -> None:
    kept, _ = _filter(documents, tmp_path, profile=("c4",))
    manifest = json.loads((tmp_path / "filter" / "manifest.json").read_text())
    assert manifest["counts"]["removed_lines"] == sum(row["removed_lines"] for row in kept.values()) > 0


def test_rules_of_one_name_are_about_one_statistic(documents: str, tmp_path: Path) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text(f"version = 1\ndescription = ''\n{_RULE.format('hashes')}")
    with pytest.raises(UsageError, match="rule hashes: two profiles have rules of this name, about words and"):
        _filter(documents, tmp_path, profile=(str(profile), "gopher-quality"))
