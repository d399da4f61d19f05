"""The built wheel works in a fresh environment and finds its data."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(_REPOSITORY)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of a fresh environment with the wheel.

    Dependencies, and pip, are those of this environment, so that the test needs no network; `pip check` checks them.
    """
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    site = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    ).stdout.strip()  # fmt: skip
    Path(site, "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, env=_clean_environment())
    return folder / "bin"


def _clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}


def _run(command: list[str | Path], folder: Path) -> str:
    arguments = [str(part) for part in command]
    result = subprocess.run(
        arguments, cwd=folder, env=_clean_environment(), capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_wheel_contains_both_packages_and_the_data(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.name.startswith("webtext_kit-")
    assert "webtext_cli/main.py" in names
    assert "pipelines/storage/files.py" in names
    templates = [path for path in (_REPOSITORY / "pipelines" / "reports" / "templates").iterdir() if path.is_file()]
    assert {f"pipelines/reports/templates/{path.name}" for path in templates} <= set(names)
    assert "pipelines/_data/wikipedia-domains.txt" in names
    assert not [name for name in names if name.startswith(("tests/", "docs/", "benchmarks/"))]
    tracked = [path for path in (_REPOSITORY / "data").rglob("*") if path.is_file()]
    assert {f"pipelines/_data/{path.relative_to(_REPOSITORY / 'data')}" for path in tracked} <= set(names)


def test_the_command_runs_in_the_fresh_environment(installed: Path, tmp_path: Path) -> None:
    assert "Rebuild WebText" in _run([installed / "webtext", "--help"], tmp_path)
    where = _run([installed / "python", "-c", "import webtext_cli; print(webtext_cli.__file__)"], tmp_path)
    assert where.startswith(str(installed.parent))


def test_the_requirements_of_the_wheel_are_met(installed: Path, tmp_path: Path) -> None:
    command = [str(installed / "python"), "-m", "pip", "check"]
    check = subprocess.run(command, cwd=tmp_path, env=_clean_environment(), capture_output=True, text=True, check=False)
    # Other packages may require what a bare environment lacks (a newer setuptools); this one may not.
    assert [line for line in check.stdout.splitlines() if line.startswith("webtext-kit")] == []
    assert "webtext-kit" in _run([installed / "python", "-m", "pip", "list"], tmp_path)


def test_the_command_finds_its_data(installed: Path, tmp_path: Path) -> None:
    assert "wrote corpus/webtext.toml" in _run([installed / "webtext", "init", "corpus"], tmp_path)
    (tmp_path / "a.jsonl").write_text(
        '{"url": "https://en.wikipedia.org/wiki/X", "text": "x"}\n{"url": "http://a.com/", "text": "y"}\n'
    )
    summary = _run([installed / "webtext", "remove-wikipedia", "-i", "a.jsonl", "-o", "out", "--json"], tmp_path)
    assert '"wikipedia_domain": 1' in summary
