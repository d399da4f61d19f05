"""A run with other options, inputs or a new version is refused, unless nothing would be lost."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from numbers_run import (
    Config,
    refuse_input,
    run_numbers,
    run_to,
    top_files,
)

from pipelines.engine.config import option
from pipelines.engine.manifest import read_manifest
from pipelines.engine.run import RunOptions
from pipelines.errors import (
    ChangedRunError,
    InputError,
    WebtextError,
)
from pipelines.records.inputs import open_stage


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"config": Config(least=3)}, "least was 0, is now 3"),
        ({"inputs": {"a": "2"}}, "its input 'a' has changed"),
        ({"inputs": {"a": "1", "b": "1"}}, "its input 'b' is new"),
        ({"version": 2}, "it was built by version 1 of the stage, this is version 2"),
    ],
)
def test_a_different_result_is_refused_unless_overwritten(
    tmp_path: Path, finished: bool, change: dict[str, Any], message: str
) -> None:
    out = tmp_path / "out"
    run_to(out, finished)
    content = "a different result" if finished else "an unfinished run that differs"
    effect = "rebuild all of it [(]this result stays in use" if finished else "delete its work and start"
    with pytest.raises(ChangedRunError, match=f"contains {content}: {message}. Use --overwrite to {effect}"):
        run_numbers(out, **change)
    _, done = run_numbers(out, **change, options=RunOptions(overwrite=True))
    assert len(done) == 4


@dataclasses.dataclass(frozen=True)
class _ConfigWithNewOption(Config):
    most: int = option(99, "Greatest number kept.")


@pytest.mark.parametrize("finished", [True, False])
def test_a_result_older_than_an_option_counts_as_built_with_its_default(tmp_path: Path, finished: bool) -> None:
    out = tmp_path / "out"
    run_to(out, finished)
    with pytest.raises(ChangedRunError, match="most was 99, is now 50"):
        run_numbers(out, _ConfigWithNewOption(most=50))
    assert len(run_numbers(out, _ConfigWithNewOption())[1]) == (0 if finished else 2)


def test_a_former_option_with_what_is_now_the_only_value_is_no_difference(tmp_path: Path) -> None:
    class WithoutOption(Config):
        former_options = (("most", 99),)

    run_numbers(tmp_path / "kept", _ConfigWithNewOption())
    assert not run_numbers(tmp_path / "kept", WithoutOption())[1]
    run_numbers(tmp_path / "other", _ConfigWithNewOption(most=50))
    with pytest.raises(ChangedRunError, match="most was 50, is now null"):
        run_numbers(tmp_path / "other", WithoutOption())


def test_a_new_option_without_a_default_is_a_difference(tmp_path: Path) -> None:
    @dataclasses.dataclass(frozen=True, kw_only=True)
    class RequiredOption(Config):
        most: int = option(dataclasses.MISSING, "Greatest number kept.")

    run_numbers(tmp_path / "out")
    with pytest.raises(ChangedRunError, match="most was not recorded, is now 99"):
        run_numbers(tmp_path / "out", RequiredOption(most=99))


def test_a_damaged_header_says_what_to_delete_since_overwrite_would_not_help(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_to(out, finished=False)
    (out / "_journal" / "run.json").write_text("{}")
    for overwrite in (False, True):
        with pytest.raises(InputError, match=rf"run\.json: is not the header of a run .*; delete {out} and re-run"):
            run_numbers(out, options=RunOptions(overwrite=overwrite))


def test_speed_may_change_between_runs(tmp_path: Path) -> None:
    run_numbers(tmp_path / "out")
    assert run_numbers(tmp_path / "out", Config(speed=9))[1] == []


def test_a_first_attempt_without_results_is_replaced(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_numbers(tmp_path / "out", inputs={"a": "the wrong file"}, stop_after=0)
    assert len(run_numbers(tmp_path / "out", inputs={"a": "the right file"})[1]) == 4
    run_numbers(tmp_path / "fresh", inputs={"a": "the right file"})
    assert top_files(tmp_path / "out") == top_files(tmp_path / "fresh")


def test_options_may_change_after_a_run_in_which_everything_was_dropped(tmp_path: Path) -> None:
    with pytest.raises(WebtextError, match="all 40 records were dropped"):
        run_numbers(tmp_path / "out", Config(least=100), tasks=4)
    assert (tmp_path / "out" / "numbers-00003.json").exists(), "the files are kept to see what was dropped"
    assert len(run_numbers(tmp_path / "out", tasks=2)[1]) == 2
    run_numbers(tmp_path / "fresh", tasks=2)
    assert top_files(tmp_path / "out") == top_files(tmp_path / "fresh")


def test_options_may_not_change_after_a_finished_task(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_numbers(tmp_path / "out", stop_after=1)
    with pytest.raises(ChangedRunError, match="an unfinished run that differs"):
        run_numbers(tmp_path / "out", Config(least=5))


def test_a_first_attempt_without_results_keeps_files_of_others(tmp_path: Path) -> None:
    with pytest.raises(WebtextError, match="all 40 records were dropped"):
        run_numbers(tmp_path / "out", Config(least=100))
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(ChangedRunError):
        run_numbers(tmp_path / "out")
    assert (tmp_path / "out" / "notes.txt").exists()


def test_shards_without_a_manifest_are_not_trusted(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run_numbers(out)
    (out / "manifest.json").write_text("garbage")
    with pytest.raises(InputError, match=r"manifest\.json: is not valid JSON .* move .*out away and re-run the stage"):
        run_numbers(out)
    (out / "manifest.json").unlink()
    with pytest.raises(
        InputError, match=r"out: contains numbers-00000\.json, \.\.\. but no manifest.* move the folder away"
    ):
        run_numbers(out)


def test_a_folder_not_written_by_webtext_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    for options in (RunOptions(), RunOptions(overwrite=True)):
        with pytest.raises(InputError, match=r"is not empty \(thesis.tex, ...\) and was not written by webtext"):
            run_numbers(tmp_path, options=options)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_manifest_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"name": "a web app"}')
    with pytest.raises(InputError, match=r"manifest\.json: is not a manifest of webtext"):
        read_manifest(str(tmp_path))
    (tmp_path / "manifest.json").write_text('{"format": 99}')
    with pytest.raises(InputError, match="has format 99, this version reads 1"):
        read_manifest(str(tmp_path))


def test_the_folder_of_another_stage_is_refused(tmp_path: Path) -> None:
    run_numbers(tmp_path / "out")
    with pytest.raises(InputError, match="is the output of numbers, expected scrape"):
        open_stage(str(tmp_path / "out"), ["scrape"])
    with pytest.raises(InputError, match="nowhere: no such folder; run `webtext scrape` first"):
        open_stage(str(tmp_path / "nowhere"), ["scrape"])
    (tmp_path / "bare").mkdir()
    with pytest.raises(InputError, match="bare: has no manifest, so it is not the output of scrape"):
        open_stage(str(tmp_path / "bare"), ["scrape"])


@pytest.mark.parametrize("attempt", ["first", "resumed"])
def test_an_attempt_whose_documents_are_refused_does_not_block_others(tmp_path: Path, attempt: str) -> None:
    if attempt == "resumed":
        with pytest.raises(KeyboardInterrupt):
            run_numbers(tmp_path / "out", inputs={"documents": "1"}, stop_after=2)
    with pytest.raises(InputError, match="no numbers"):
        refuse_input(tmp_path / "out")
    assert run_numbers(tmp_path / "out", inputs={"documents": "2"})[1] == [0, 10, 20, 30]


@pytest.mark.parametrize("name", ["documents", "listings"])
def test_an_attempt_whose_input_is_refused_resumes_with_the_same_input(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="no numbers"):
        refuse_input(tmp_path / "out", name=name)
    assert run_numbers(tmp_path / "out", inputs={name: "1"})[1] == []


def test_what_was_asked_of_a_server_is_not_lost_to_another_option(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no numbers"):
        refuse_input(tmp_path / "out", name="listings")
    with pytest.raises(ChangedRunError):
        run_numbers(tmp_path / "out", inputs={"listings": "2"})
