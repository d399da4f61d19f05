"""The executor on Ray: results, progress, errors by the name of the task, and an end without waiting."""

from __future__ import annotations

import itertools
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipelines import progress
from pipelines.engine import ray_executor
from pipelines.engine.executor import make_executor
from pipelines.engine.tasks import Executor
from pipelines.errors import InputError, TaskError, UsageError

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    ray = pytest.importorskip("ray", reason="needs the package ray: pip install '.[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        patch.setenv("RAY_AUTH_MODE", "disabled")  # as in other tests: Ray reads it once per process
        yield make_executor(2, "ray")
        ray.shutdown()


def _add(number: int, context: dict[str, int]) -> int:
    for _ in range(3):
        progress.advance(number)
        time.sleep(0.3)
    return number + context["more"]


def _refuse(number: int) -> int:
    if number == 3:
        raise InputError("the third file is bad")
    return number


def _crash(number: int) -> float:
    return 1 / (number - 3)


def _die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def _sleep(number: int) -> tuple[float, float]:
    start = time.monotonic()
    time.sleep(0.5)
    return start, time.monotonic()


def _wait(number: int) -> int:
    time.sleep(0 if number == 0 else 60)
    return number


def test_every_item_is_returned_with_its_result_and_progress(executor: Executor) -> None:
    seen: list[int] = []
    results = dict(executor.map(_add, range(8), {"more": 10}, seen.append, str))
    assert results == {number: number + 10 for number in range(8)}
    assert sum(seen) == 3 * sum(range(8))
    assert len(seen) > 4
    assert list(executor.map(_add, [], None, seen.append, str)) == []
    assert executor.workers == 2


def test_a_node_runs_only_tasks_that_fit_into_its_memory(executor: Executor) -> None:
    assert executor.memory_bytes is not None
    for share, fits in ((0.25, True), (0.75, False), (1000, False)):
        memory_bytes = int(share * executor.memory_bytes)
        times = sorted(dict(executor.map(_sleep, range(4), None, lambda _: None, str, memory_bytes)).values())
        assert any(start < end for (_, end), (start, _) in itertools.pairwise(times)) == fits


def test_no_more_tasks_run_than_workers_were_asked_for(executor: Executor) -> None:
    assert executor.workers == 2
    intervals = [interval for _, interval in make_executor(1, "ray").map(_sleep, range(3), None, len, str)]
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(sorted(intervals)))


def test_a_cluster_that_loses_a_node_finishes_what_it_began(
    executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = itertools.chain([2], itertools.repeat(1))
    monkeypatch.setattr(type(executor), "_cores", property(lambda _executor: next(cores)))
    assert len(list(executor.map(_sleep, range(8), None, len, str))) == 8


def test_errors_name_the_task(executor: Executor) -> None:
    with pytest.raises(InputError, match=r"^the third file is bad$"):
        list(executor.map(_refuse, range(8), None, lambda _: None, str))
    with pytest.raises(TaskError, match=r"^3: ZeroDivisionError"):
        list(executor.map(_crash, range(8), None, lambda _: None, str))
    with pytest.raises(TaskError, match=r"^3: its worker process died in 4 attempts .* re-run the same command"):
        list(executor.map(_die, range(8), None, lambda _: None, str))


def test_a_map_that_is_closed_cancels_its_tasks(executor: Executor) -> None:
    results = executor.map(_wait, range(4), None, lambda _: None, str)
    assert next(results) == (0, 0)
    start = time.monotonic()
    results.close()
    assert time.monotonic() - start < 20
    assert dict(executor.map(_refuse, range(3), None, lambda _: None, str)) == {0: 0, 1: 1, 2: 2}


def test_an_address_where_nothing_answers_is_an_error_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # not listening
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UsageError, match=rf"^{address}: no Ray cluster answers there \(.*refused\)"):
            ray_executor._check_answers(address)


def test_a_running_cluster_with_a_token(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the package ray: pip install '.[ray]'")
    ray = str(Path(sys.executable).with_name("ray"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    environment = {**os.environ, "HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([ray, "get-auth-token", "--generate"], env=environment, check=True, stdout=subprocess.DEVNULL)
    start = [ray, "start", "--head", "--block", f"--port={port}", "--num-cpus=1", "--include-dashboard=false"]
    with subprocess.Popen(
        start, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as cluster:
        try:
            assert cluster.stdout is not None
            matches = (re.search(rf"--address='([\d.]+:{port})'", line) for line in cluster.stdout)
            address = next(match[1] for match in matches if match)
            items = f"make_executor(1, 'ray', '{address}').map(abs, [-1, -2], None, lambda _: None, str)"
            code = f"from pipelines.engine.executor import make_executor; print(list({items}))"
            result = subprocess.run(
                [sys.executable, "-c", code], env=environment, check=True, stdout=subprocess.PIPE, text=True
            )
            assert result.stdout == "[(-1, 1), (-2, 2)]\n"
        finally:
            os.killpg(cluster.pid, signal.SIGTERM)
