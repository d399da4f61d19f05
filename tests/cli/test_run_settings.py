"""Where tasks run: flags, then the environment, then [run] in webtext.toml."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipelines.engine import executor
from pipelines.engine.executor import LocalExecutor, make_executor
from pipelines.engine.tasks import SerialExecutor
from webtext_cli.main import main
from webtext_cli.options import StageCall


@pytest.fixture
def documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WEBTEXT_EXECUTOR", raising=False)
    path = tmp_path / "documents.jsonl"
    path.write_text("".join(json.dumps({"text": f"document {number} of five"}) + "\n" for number in range(5)))
    return path


def _call(corpus: Path, workers: int | None = None) -> StageCall:
    return StageCall("", {"workers": workers}, str(corpus), overwrite=False, as_json=False, quiet=True)


def test_the_number_of_workers(tmp_path: Path) -> None:
    assert isinstance(_call(tmp_path, 1).run_options().executor, SerialExecutor)
    (tmp_path / "webtext.toml").write_text("[run]\nworkers = 3\n")
    recorded = _call(tmp_path).run_options().executor
    assert isinstance(recorded, LocalExecutor)
    assert recorded.workers == 3
    assert _call(tmp_path, 2).run_options().executor.workers == 2
    assert make_executor().workers == executor.default_workers()


@pytest.mark.parametrize(
    ("table", "environment", "flags", "runs_on_ray"),
    [
        ("", None, ["--executor", "ray"], True),
        ("", "ray", [], True),
        ("executor = 'ray'", None, [], True),
        ("executor = 'ray'\nray_address = 'auto'", None, ["--executor", "local"], False),
        ("executor = 'ray'", "local", [], False),
    ],
)
def test_the_executor(
    documents: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    table: str,
    environment: str | None,
    flags: list[str],
    runs_on_ray: bool,
) -> None:
    if environment:
        monkeypatch.setenv("WEBTEXT_EXECUTOR", environment)
    Path("webtext.toml").write_text(f"[run]\n{table}\n")
    monkeypatch.setattr("pipelines.extras.find_spec", lambda _name: None)
    code = main(["dedup", "-i", str(documents), "-o", "out", "-q", *flags])
    assert code == (1 if runs_on_ray else 0)
    assert ("needs ray; run: pip install 'webtext-kit[ray]'" in capsys.readouterr().err) == runs_on_ray


@pytest.mark.parametrize(
    ("table", "flags", "message"),
    [
        ("executor = 'dask'", [], "webtext.toml [run]: executor = 'dask' is not one of local, ray"),
        ("exekutor = 'ray'", [], "unknown option 'exekutor'; did you mean executor?"),
        ("", ["--ray-address", "auto"], "a Ray address has no effect on the local executor; use --executor ray"),
        ("", ["--executor", "dask"], "--executor dask: is not one of local, ray"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    documents: Path, capsys: pytest.CaptureFixture[str], table: str, flags: list[str], message: str
) -> None:
    Path("webtext.toml").write_text(f"[run]\n{table}\n")
    assert main(["dedup", "-i", str(documents), "-o", "out", "-q", *flags]) == 2
    assert message in capsys.readouterr().err
