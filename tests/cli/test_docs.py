"""The docs: their links, commands and options exist."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from headless_chromium import BrowserPage, open_page

import webtext as api
from webtext_cli.main import COMMANDS, webtext

_REPOSITORY = Path(__file__).resolve().parents[2]
_PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/*.md")
    for path in _REPOSITORY.glob(pattern)
    if path.name != "cli.md"
)


def _name(path: Path) -> str:
    return str(path.relative_to(_REPOSITORY))


@pytest.mark.parametrize("page", _PAGES, ids=_name)
def test_links_point_to_files_and_headings(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{_name(page)} links to {target}"
        if heading and file.suffix == ".md":
            assert heading in _headings(file), f"{_name(page)} links to {target}"


@pytest.mark.parametrize("page", _PAGES, ids=_name)
def test_commands_and_options_in_examples_exist(page: Path) -> None:
    blocks = re.findall(r"```(?:console|bash|sh)\n(.*?)```", page.read_text(), flags=re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    for line in lines:
        command = re.match(r"\s*(?:\$ )?webtext ([a-z][a-z-]*)(.*)", line.split("  #")[0])
        if command is None:
            continue
        assert command[1] in COMMANDS, line
        known = _flags(command[1])
        used = re.findall(r"(?<!\S)--?[a-zA-Z][a-z0-9-]*", command[2])
        assert [flag for flag in used if flag not in known] == [], f"{_name(page)}: {line}"


def test_the_table_of_functions_has_their_parameters() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (.*) \| `\w+Config` \|$", (_REPOSITORY / "docs/python.md").read_text(), re.MULTILINE
    )
    assert len(rows) == 12
    for name, inputs in rows:
        parameters = set(inspect.signature(getattr(api, name)).parameters) - {"config", "output", "options"}
        named = set(re.findall(r"`(\w+)`", inputs))
        assert named <= parameters, name


@pytest.mark.parametrize("page", _PAGES, ids=_name)
def test_options_in_the_text_exist(page: Path) -> None:
    known = set().union(*(_flags(name) for name in COMMANDS)) | {"--version", "--help"}
    # Options of other programs.
    known |= {f"--{name}" for name in "long only scale check data kills seed step pages no-deps size-mb pools".split()}
    named = re.findall(r"`(--[a-z][a-z0-9-]*)", page.read_text())
    assert [flag for flag in named if flag not in known] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_site_has_all_links_and_makes_no_external_requests(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(_PAGES)
    for page in pages:
        # Scripts, styles, fonts and pictures; what a reader may click on is no request of the page.
        loaded = r"<(?:script|link|img|iframe|source|object)\b[^>]*(?:src|srcset|href|data)=[\"']?(?:https?:)?//[^>]*"
        assert re.findall(loaded, page.read_text()) == [], page
        assert 'class="mermaid"' not in page.read_text(), f"{page}: the theme loads mermaid from another server"
    styles = [path.read_text() for path in site.rglob("*.css")]
    assert styles
    assert not any(re.search(r"(?:url\(|@import)\s*[\"']?https?:", style) for style in styles)


def test_a_site_that_is_opened_as_files_can_be_searched(site: Path, browser: BrowserPage) -> None:
    open_page(browser, site / "docs" / "start.html")
    browser.evaluate("""(() => { const field = document.querySelector("[data-md-component=search-query]");
        field.focus(); field.value = "duplicates"; field.dispatchEvent(new Event("input"));
        field.dispatchEvent(new KeyboardEvent("keyup", { key: "s", bubbles: true })); })()""")
    browser.wait_for_selector(".md-search-result__item")


@pytest.mark.parametrize("name", COMMANDS)
def test_pages_of_commands_have_at_most_1500_words(name: str) -> None:
    page = _REPOSITORY / "docs" / f"{name}.md"
    assert not page.exists() or len(page.read_text().split()) <= 1500


def test_the_readme_is_short_and_opens_with_the_two_make_commands() -> None:
    lines = (_REPOSITORY / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    assert [line.split("  ")[0] for line in lines[3:5]] == ["make demo", "make test"]


def test_functions_that_the_architecture_names_exist() -> None:
    text = (_REPOSITORY / "docs" / "architecture.md").read_text()
    named = re.findall(r"`([\w/]+\.py): ([\w.]+)`", text)
    assert len(named) > 20
    for file, name in named:
        sources = [path.read_text() for path in (_REPOSITORY / "pipelines").glob(f"**/{file}")]
        for part in name.split("."):
            sources = [source for source in sources if re.search(rf"\b(?:def|class) {part}\b", source)]
        assert sources, f"docs/architecture.md names {file}: {name}"


def _headings(file: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}


def _flags(name: str) -> set[str]:
    command = webtext.get_command(click.Context(webtext), name)
    assert command is not None
    flags = {flag for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    return flags | {"-h", "--help"}
