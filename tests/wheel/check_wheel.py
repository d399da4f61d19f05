"""Build the wheel, install it as a new user does, and use it: `make wheel`.

The environment is empty and has the pip that comes with this Python. Everything runs outside the checkout. Dependencies
come from the package index, in their latest versions, as a user gets them; extras are only resolved. Without an index
nothing is checked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]
_SETTINGS = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
_STARTED = time.monotonic()
# Both need lxml's extra `html-clean`, and spell it differently: pip 23.2 crashed on that. `all` would take 25 s of
# a core.
_RESOLVED_EXTRAS = ("trafilatura", "newspaper", "trafilatura,newspaper")
_DOCUMENTS = {
    "a.jsonl": '{"id": "a", "url": "https://en.wikipedia.org/wiki/X", "text": "One two three four five six."}\n',
    "b.jsonl": '{"id": "b", "url": "https://a.example/", "text": "One two three four five six."}\n',
}


def main() -> None:
    """Run all steps in a temporary folder; an error ends the script with exit code 1."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", folder, _REPOSITORY, folder=folder)
        (wheel,) = folder.glob("webtext_kit-*.whl")
        _check_contents(wheel)
        _report(f"built {wheel.name}, {wheel.stat().st_size:,} bytes")
        venv.create(folder / "env", symlinks=True, with_pip=True)
        python, webtext = folder / "env" / "bin" / "python", folder / "env" / "bin" / "webtext"
        pip = [python, "-m", "pip"]
        install = [*pip, "install", "--quiet", "--no-compile"]
        if problem := _index_problem(
            [*install, "--dry-run", "--no-deps", "--retries", "0", "--timeout", "10", "click"]
        ):
            _report(f"skipped: pip cannot read a package index ({problem})")
            return
        _run(*install, wheel, folder=folder)
        _run(*pip, "check", folder=folder)
        version = _run(*pip, "--version", folder=folder).split(" from")[0]
        packages = len(_run(*pip, "list", "--format", "freeze", folder=folder).splitlines())
        size = sum(path.stat().st_size for path in (folder / "env" / "lib").rglob("*") if path.is_file())
        _report(f"installed by {version}: {packages} packages, {size / 1e6:,.0f} MB")
        for extra in _RESOLVED_EXTRAS:
            _run(*install, "--dry-run", f"{wheel}[{extra}]", folder=folder)
            _report(f"resolved {extra}")
        _use(python, webtext, folder / "use")
        _report("used: the wheel is right")


def _index_problem(command: list[str | Path]) -> str:
    """Return why pip finds a package nowhere; empty if it does."""
    result = subprocess.run(command, env=_SETTINGS, capture_output=True, text=True, check=False)
    return result.stderr.strip().splitlines()[-1] if result.returncode else ""


def _use(python: Path, webtext: Path, folder: Path) -> None:
    """Run the command and import the package in a new folder."""
    folder.mkdir()
    for name, text in _DOCUMENTS.items():
        (folder / name).write_text(text)
    inputs = [part for name in _DOCUMENTS for part in ("-i", name)]
    assert "Rebuild WebText" in _run(webtext, "--help", folder=folder)
    place = _run(python, "-c", "import webtext; print(webtext.__file__, webtext.dedup.__module__)", folder=folder)
    assert place.startswith(str(webtext.parents[1])), place
    assert place.split()[1] == "pipelines.stages.dedup.stage", place
    summary = _run(webtext, "dedup", *inputs, "-o", "unique", "--json", folder=folder)
    assert '"exact_duplicate": 1' in summary, summary
    # It reads a file of the package's data.
    summary = _run(webtext, "remove-wikipedia", *inputs, "-o", "out", "--json", folder=folder)
    assert '"wikipedia_domain": 1' in summary, summary
    error = _run(webtext, "pretrain", "-i", "tokens", "-o", "model", folder=folder, code=1)
    assert error == "error: a model needs torch and safetensors; run: pip install 'webtext-kit[train]'\n", error


def _check_contents(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"webtext/__init__.py", "webtext/py.typed", "webtext_cli/main.py", "pipelines/py.typed"} <= names
    templates = _REPOSITORY / "pipelines" / "reports" / "templates"
    for source, target in ((templates, "pipelines/reports/templates"), (_REPOSITORY / "data", "pipelines/_data")):
        missing = {f"{target}/{path.relative_to(source)}" for path in source.rglob("*") if path.is_file()} - names
        assert not missing, missing
    assert not [name for name in names if name.startswith(("tests/", "docs/", "benchmarks/", "examples/"))]


def _run(*command: str | Path, folder: Path, code: int = 0) -> str:
    """Return what a command prints, to standard error if it must fail."""
    arguments = [str(part) for part in command]
    settings = _SETTINGS | ({"HOME": str(folder)} if folder.name == "use" else {})  # compiled kernels are cached there
    result = subprocess.run(arguments, cwd=folder, env=settings, capture_output=True, text=True, check=False)
    if result.returncode != code:
        sys.exit(f"{' '.join(arguments)}: exit code {result.returncode}\n{result.stdout}{result.stderr}")
    return result.stderr if code else result.stdout


def _report(step: str) -> None:
    print(f"{time.monotonic() - _STARTED:5.1f} s  {step}", flush=True)


if __name__ == "__main__":
    main()
