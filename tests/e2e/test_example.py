"""`examples/webtext.py` runs the whole pipeline; `pipelines.api` exports every stage."""

from __future__ import annotations

import inspect
import runpy
from pathlib import Path

import pytest

from pipelines import api
from pipelines.demo.web import demo_routes
from pipelines.engine.manifest import read_manifest
from pipelines.pipeline import PIPELINE, StageSpec

_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "webtext.py"


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


def test_the_api_exports_every_stage() -> None:
    for stage in PIPELINE:
        assert getattr(api, stage.function) is stage.load()
        assert getattr(api, stage.config_type().__name__) is stage.config_type()
    assert [name for name in dir(api) if not hasattr(api, name)] == []
    with pytest.raises(AttributeError, match="no attribute 'scrap'"):
        _ = api.scrap


@pytest.mark.parametrize("stage", PIPELINE, ids=lambda stage: stage.name)
def test_the_docstring_of_a_stage_describes_its_inputs(stage: StageSpec) -> None:
    function = stage.load()
    docstring = inspect.getdoc(function) or ""
    inputs = [name for name in inspect.signature(function).parameters if name not in ("config", "output", "options")]
    assert [name for name in inputs if f"`{name}`" not in docstring] == []
    assert "Raises" in docstring
