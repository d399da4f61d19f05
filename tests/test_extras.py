"""The dependencies: what a plain installation has, and what each extra adds."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from pipelines.stages.scrape import reddit_api
from webtext_cli.main import main

_REPOSITORY = Path(__file__).resolve().parents[1]
_PROJECT = tomllib.loads((_REPOSITORY / "pyproject.toml").read_text())["project"]
_EXTRAS = _PROJECT["optional-dependencies"]
# torch and starlette live in these packages, which are only imported after a check that they are installed; contracts
# of imports check it.
_CHECKED = (
    "pipelines/browse/",
    "pipelines/model/",
    "pipelines/evaluation/",
    "pipelines/finetuning/",
    "pipelines/stages/pretrain/training.py",
)
_OWN = {"webtext", "webtext_cli", "pipelines"}


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=~!; ]", requirement)[0].lower().replace("_", "-") for requirement in requirements}


def _imports(tree: ast.AST, deferred: bool = False) -> Iterator[tuple[str, bool]]:
    """Yield the first part of the name of each imported module, and whether a function imports it."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name.split(".")[0], deferred) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0], deferred
        yield from _imports(node, deferred or isinstance(node, ast.FunctionDef))


def test_a_library_of_an_extra_is_imported_where_it_is_used() -> None:
    base = _names(_PROJECT["dependencies"])
    extras = set().union(*(_names(requirements) for name, requirements in _EXTRAS.items() if name != "dev"))
    distributions = packages_distributions()
    misplaced, undeclared = [], set()
    for path in [path for package in sorted(_OWN) for path in sorted((_REPOSITORY / package).rglob("*.py"))]:
        name = str(path.relative_to(_REPOSITORY))
        for module, deferred in _imports(ast.parse(path.read_text())):
            if module in _OWN or module in sys.stdlib_module_names or find_spec(module) is None:
                continue
            known = {module, *distributions.get(module, [])}
            known = {distribution.lower().replace("_", "-") for distribution in known}
            if not known & (base | extras):
                undeclared.add(module)
            elif not known & base and not deferred and not name.startswith(_CHECKED):
                misplaced.append(f"{name}: {module}")
    assert misplaced == []
    # They come with a dependency that is declared, and are only used together with it.
    assert undeclared == {"anyio", "awkward", "llvmlite", "markupsafe", "prawcore"}


def test_all_has_every_extra() -> None:
    named = {name for entry in _EXTRAS["all"] for name in entry.split("[")[1].rstrip("]").split(",")}
    assert named == _EXTRAS.keys() - {"all", "dev"}


@pytest.mark.parametrize(
    ("module", "extra", "arguments"),
    [
        ("praw", "reddit", ["scrape", "--source", "praw", "--subreddit", "Python", "-o", "out"]),
        ("trafilatura", "trafilatura", ["extract", "-i", "a.html", "--extractor", "trafilatura", "-o", "out"]),
        ("newspaper", "newspaper", ["extract", "-i", "a.html", "--extractor", "newspaper", "-o", "out"]),
        ("datasketch", "datasketch", ["dedup", "-i", "a.jsonl", "--write-signatures", "-o", "out"]),
        ("pybloom_live", "pybloom", ["overlap-index", "-i", "a.jsonl", "--filter", "pybloom-live", "-o", "out"]),
        ("mwparserfromhell", "wikipedia", ["remove-wikipedia", "-i", "a.jsonl", "--reference", "a.xml", "-o", "out"]),
        ("tantivy", "search", ["search", "--build", "-i", "a.jsonl", "-o", "out"]),
        ("torch", "train", ["pretrain", "-i", "tokens", "-o", "out"]),
    ],
)
def test_a_missing_library_is_named_with_the_command_that_installs_it(
    module: str,
    extra: str,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.html").write_text("<p>One.</p>")
    (tmp_path / "a.xml").write_text("<mediawiki>")
    (tmp_path / "a.jsonl").write_text('{"id": "a", "text": "One two three four five six seven eight nine."}\n')
    monkeypatch.setattr("pipelines.extras.find_spec", lambda name: None if name == module else find_spec(name))
    reddit_api.connect.cache_clear()  # a client of another test
    assert main(arguments) == 1
    package = module.replace("_", "-")
    error = capsys.readouterr().err
    assert re.search(rf"needs {package}; run: pip install 'webtext-kit\[{extra}\]'", error), error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()
