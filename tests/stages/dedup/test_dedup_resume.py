"""Runs of dedup that were stopped, or lost a file, end with the same bytes."""

from __future__ import annotations

import dataclasses

import pytest
from dedup_run import StoppedError, StoppingExecutor, random_corpus, result_files, run, write_corpus

from pipelines.errors import ChangedRunError
from pipelines.stages.dedup import stage


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished")
    documents = write_corpus(folder / "in", random_corpus(13, 60))
    run(documents, folder / "whole", buckets=2)
    return documents, result_files(folder / "whole")


@pytest.mark.parametrize("tasks", range(1, 26, 3))
def test_a_stopped_run_resumes_to_the_same_bytes(finished, tmp_path, tasks):
    documents, whole = finished
    with pytest.raises(StoppedError):
        run(documents, tmp_path / "stopped", executor=StoppingExecutor(tasks), buckets=2)
    assert not (tmp_path / "stopped" / "manifest.json").exists()
    run(documents, tmp_path / "stopped", buckets=2)
    assert result_files(tmp_path / "stopped") == whole


def test_a_run_that_was_begun_with_other_work_files_is_not_resumed(finished, tmp_path, monkeypatch):
    documents, _ = finished
    monkeypatch.setattr(stage, "STAGE", dataclasses.replace(stage.STAGE, version=2))
    with pytest.raises(StoppedError):
        run(documents, tmp_path / "out", executor=StoppingExecutor(3))
    monkeypatch.undo()
    with pytest.raises(ChangedRunError, match="by version 2 of the stage"):
        run(documents, tmp_path / "out")


def test_a_lost_file_of_a_finished_run_is_rebuilt(tmp_path):
    documents = write_corpus(tmp_path / "in", random_corpus(14, 60))
    run(documents, tmp_path / "out")
    whole = result_files(tmp_path / "out")
    for name in ("documents-00001.parquet", "clusters.parquet"):
        (tmp_path / "out" / name).unlink()
        run(documents, tmp_path / "out")
        assert result_files(tmp_path / "out") == whole
    with pytest.raises(ChangedRunError, match=r"threshold was 0\.8, is now 0\.7"):
        run(documents, tmp_path / "out", threshold=0.7)
