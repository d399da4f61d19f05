"""Rules of `webtext filter`: profiles, thresholds, and functions of the user; files that are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from filter_run import PROSE, run, write_documents

from pipelines.errors import InputError, UsageError
from pipelines.stages.filter.rules import load_rules, read_profile
from pipelines.storage.resources import data_names


@pytest.fixture
def documents(tmp_path: Path) -> str:
    return write_documents(tmp_path)


_HEAD = "version = 1\ndescription = ''\n"
_RULE = '[[rule]]\nname = "{}"\nstatistic = "words"\nmin = 1\n'


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
    _, dropped = run(documents, tmp_path, rules=str(own), **settings)
    assert dropped == {
        "prose": "of_cats: own.of_cats 1 is above 0",
        "numbers": "sentences: own.sentences 40 is above 12",
        "repeated": "sentences: own.sentences 20 is above 12",
    }
    (tmp_path / "one").mkdir()
    rules = ("few_stop_words", "of_cats")
    _, dropped = run(documents, tmp_path / "one", profile=("none",), rule=rules, rules=str(own))
    assert [*dropped] == ["prose", "short", "numbers", "german"]
    rule_set = load_rules(["none"], ["hashes"], [], str(own))
    assert [rule.name for rule in rule_set.rules] == ["hashes", "of_cats", "sentences"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("p.toml", "version = 1", "missing required field .description"),
        ("p.toml", "version = [", ": is not valid TOML"),
        (
            "p.toml",
            "version = 1\ndescription = ''\n[[rule]]\nname = 'a'\nstatistic = 'words'",
            "needs either min or max",
        ),
        ("r.py", "def x(:", "is not Python .invalid syntax"),
        ("r.py", "1 / 0", "cannot be run .ZeroDivisionError"),
        ("r.py", "raise SystemExit", "cannot be run .SystemExit"),
        ("r.py", "def x(document):\n    raise SystemExit", "x raised SystemExit: .*for document prose"),
        ("r.py", "x = 3", "defines no function"),
        ("r.py", "def x(document):\n    return 'a'", "x returned 'a' for document prose; return a finite number"),
        ("r.py", "def x(document):\n    return None", "x returned None for document prose"),
        ("r.py", "def x(document):\n    return float('nan')", "x returned nan for document prose"),
        ("r.py", "def x(document):\n    return float('inf')", "x returned inf for document prose"),
        ("r.py", "def x(document):\n    return 0.7", "x returned 0.7 .* set x.max or x.min"),
        ("r.py", "def x(document):\n    return 10**400", "x raised OverflowError: .* for document prose"),
        ("r.py", "def x(document):\n    return document.metadata['a']", "x raised KeyError: 'a' for document prose"),
        ("p.toml", f"{_HEAD}{_RULE.format('language')}", r" \[rule 1\]: name = 'language': is the name of another"),
        ("p.toml", f"{_HEAD}{_RULE.format('a') * 2}", r" \[rule 1\]: name = 'a': is the name of another rule"),
        (
            "p.toml",
            f"{_HEAD}{_RULE.format('a').replace('words', 'word')}",
            r" \[rule 1\]: statistic = 'word': is not",
        ),
        ("p.toml", f"{_HEAD}[rule]\nname = 'a'", ": rule = {.*}: expected a list; write .*rule"),
        (
            "p.toml",
            f"{_HEAD}{_RULE.format('a').replace('= 1', '= -inf')}",
            "min = -inf: expected a number that is finite",
        ),
        ("p.toml", _HEAD.replace("1", "2017-12-31"), ": version = 2017-12-31: expected a whole number"),
        (
            "p.toml",
            f"{_HEAD}{_RULE.format('too short!')}",
            r" \[rule 1\]: name = 'too short!': expected a string of lower-case letters, digits and _, a",
        ),
        (
            "p.toml",
            f"version = 1\ndescription = ''\n{_RULE.format('a').replace('words', 'sentences')}",
            r" \[rule 1\]: statistic = 'sentences': needs a table \[lines\]",
        ),
        (
            "p.toml",
            "version = 1\ndescription = ''\n[lines]\nphrases = ['']",
            " .lines.: phrases = .*: expected a string of length >= 1",
        ),
        ("p.toml", f"version = 1\ndescription = ''\n[lines]\nphrases = {['a'] * 63}", r" \[lines\]: phrases"),
        (
            "p.toml",
            f"version = 1\ndescription = ''\n[lines]\nmin_words = {2**64}",
            "min_words = .*: expected a whole number <= 1099511627776",
        ),
        (
            "p.toml",
            "version = 1\ndescription = ''\n[lines]\nmin_word = 5",
            "contains unknown field .min_word.; did you mean min_words",
        ),
    ],
)
def test_wrong_files_are_named(documents: str, tmp_path: Path, name: str, content: str, problem: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    config: dict[str, Any] = {"profile": (str(path),)} if name == "p.toml" else {"rules": str(path)}
    with pytest.raises(UsageError if name == "p.toml" else InputError, match=f"{name}.*{problem}"):
        run(documents, tmp_path, **config)


def test_a_threshold_of_a_function_is_a_number(documents: str, tmp_path: Path) -> None:
    own = tmp_path / "r.py"
    own.write_text("def x(document):\n    return 1\n\n\nx.max = '2'\n")
    with pytest.raises(UsageError, match="rule x: its threshold is '2', which is not a finite number"):
        run(documents, tmp_path, rules=str(own))


@pytest.mark.parametrize("name", ["too_short", "language", "low_quality", "empty_text"])
def test_a_function_has_a_name_of_its_own(documents: str, tmp_path: Path, name: str) -> None:
    own = tmp_path / "r.py"
    own.write_text(f"def {name}(document):\n    return 1\n")
    with pytest.raises(UsageError, match=f"r.py: {name} is already the name of a rule or reason"):
        run(documents, tmp_path, rules=str(own))


def test_rules_of_the_same_name_are_the_same() -> None:
    rules = {}
    for name in data_names("filters"):
        for rule in read_profile(name).rule:
            assert rules.setdefault(rule.name, rule) == rule


def test_a_file_of_rules_may_define_dataclasses(documents: str, tmp_path: Path) -> None:
    own = tmp_path / "r.py"
    own.write_text(
        "from __future__ import annotations\nimport dataclasses\n\n\n@dataclasses.dataclass\nclass Limit:\n"
        "    size: int\n\n\ndef short(document):\n    return len(document.text) < Limit(50).size\n"
    )
    _, dropped = run(documents, tmp_path, profile=("none",), rules=str(own))
    assert [*dropped] == ["short"]


def test_functions_may_return_numbers_of_numpy(documents: str, tmp_path: Path) -> None:
    own = tmp_path / "r.py"
    own.write_text(
        "import numpy as np\n\n\ndef long(document):\n    return np.bool_(len(document.text) > 1000)\n\n\n"
        "def size(document):\n    return np.float32(len(document.text))\n\n\nsize.min = 50\n"
    )
    _, dropped = run(documents, tmp_path, profile=("none",), rules=str(own))
    assert dropped["short"] == "size: own.size 10 is below 50"
    assert dropped["repeated"] == "long: own.long 1 is above 0"


def test_files_that_change_between_runs_of_a_process_are_read_again(documents: str, tmp_path: Path) -> None:
    own, profile = tmp_path / "r.py", tmp_path / "p.toml"
    for number, word in enumerate(("cat", "Katze")):
        own.write_text(f"def of_cats(document):\n    return '{word}' in document.text\n")
        profile.write_text(
            f"version = 1\ndescription = ''\n[[rule]]\nname = 'a'\nstatistic = 'words'\nmin = {5 + number}\n"
        )
        _, dropped = run(documents, tmp_path / str(number), profile=(str(profile),), rules=str(own))
        assert ("german" in dropped) == (word == "Katze")
        assert dropped["short"] == f"a: words 2 is below {5 + number}"


def test_every_profile_names_its_sources() -> None:
    names = data_names("filters")
    assert {*names} == {"webtext", "gopher-quality", "gopher-repetition", "c4", "fineweb", "none"}
    for name in names:
        assert all(rule.source for rule in read_profile(name).rule)
        rules = load_rules([name], [], [], None).rules
        assert len({rule.name for rule in rules}) == len(read_profile(name).rule)


def test_functions_see_further_fields_of_jsonl_and_print_to_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"id": str(number), "text": PROSE, "likes": number} for number in range(3)]
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    own = tmp_path / "r.py"
    own.write_text("print('loaded')\ndef liked(document):\n    return document.metadata['likes']\nliked.min = 2\n")
    _, dropped = run(str(tmp_path / "docs.jsonl"), tmp_path, rules=str(own))
    assert [*dropped] == ["0", "1"]
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "loaded\n")


def test_rules_of_one_name_are_about_one_statistic(documents: str, tmp_path: Path) -> None:
    profile = tmp_path / "p.toml"
    profile.write_text(f"version = 1\ndescription = ''\n{_RULE.format('hashes')}")
    with pytest.raises(UsageError, match="rule hashes: two profiles have a rule of this name, for words and"):
        run(documents, tmp_path, profile=(str(profile), "gopher-quality"))
