"""`examples/whole_pipeline.py` runs the whole pipeline; `import webtext` offers every stage."""

from __future__ import annotations

import inspect
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import webtext
from pipelines.demo.web import demo_routes
from pipelines.engine.manifest import read_manifest
from pipelines.pipeline import PIPELINE, StageSpec

_REPOSITORY = Path(__file__).resolve().parents[2]
_EXAMPLE = _REPOSITORY / "examples" / "whole_pipeline.py"


def test_the_example_runs_every_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = dict(list(demo_routes().items())[::3])
    for module in ("corpus", "web"):
        monkeypatch.setattr(f"pipelines.demo.{module}.demo_routes", lambda: routes)
    runpy.run_path(str(_EXAMPLE))["main"](str(tmp_path), workers=1)
    for stage in PIPELINE:
        assert read_manifest(str(tmp_path / stage.name)).records_out > 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("202 submissions, 35 links; dropped: {")
    assert last.startswith("language-reference: ")
    assert last.endswith("% of its 8-grams occur in the corpus")


def test_the_package_offers_every_stage() -> None:
    for stage in PIPELINE:
        assert getattr(webtext, stage.function) is stage.load()
        assert getattr(webtext, stage.config_type().__name__) is stage.config_type()
    assert [name for name in dir(webtext) if not hasattr(webtext, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'scrap'"):
        _ = webtext.scrap  # type: ignore[attr-defined]


def test_everything_that_needs_no_torch_can_be_imported_at_once() -> None:
    code = "import sys; sys.modules['torch'] = None; from webtext import *; print(dedup, DedupConfig, pretrain)"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "<function dedup" in printed


def test_importing_the_package_imports_no_other_library() -> None:
    code = "import sys; before = set(sys.modules); import webtext; print(*sorted(set(sys.modules) - before))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert {name.split(".")[0] for name in printed} - sys.stdlib_module_names == {"webtext"}


@pytest.mark.slow
def test_the_package_is_typed_and_knows_its_names(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import webtext\nreveal_type(webtext.dedup)\nwebtext.scrap\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", str(script)]
    printed = subprocess.run(command, cwd=_REPOSITORY, capture_output=True, text=True, check=False).stdout
    assert "config: pipelines.stages.dedup.config.DedupConfig" in printed
    assert 'script.py:3: error: Module has no attribute "scrap"' in printed


@pytest.mark.parametrize("stage", PIPELINE, ids=lambda stage: stage.name)
def test_the_docstring_of_a_stage_describes_its_inputs(stage: StageSpec) -> None:
    function = stage.load()
    docstring = inspect.getdoc(function) or ""
    inputs = [name for name in inspect.signature(function).parameters if name not in ("config", "output", "options")]
    assert [name for name in inputs if f"`{name}`" not in docstring] == []
    assert "Raises" in docstring
