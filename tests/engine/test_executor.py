"""Executors: the same results from every one, errors by the name of the task, no worker outlives its parent."""

from __future__ import annotations

import dataclasses
import gc
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import time
import weakref
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pipelines import progress
from pipelines.engine.executor import LocalExecutor, _serve, make_executor
from pipelines.engine.tasks import Executor, SerialExecutor, item_name, run_state
from pipelines.errors import InputError, TaskError, UsageError, WebtextError


@dataclasses.dataclass(frozen=True)
class _Task:
    number: int

    @property
    def name(self) -> str:
        return f"task-{self.number}"


def _square(task: _Task) -> int:
    progress.advance(task.number)
    return task.number**2


def _refuse_third(task: _Task) -> int:
    if task.number == 3:
        raise InputError("the third file is bad")
    return task.number


def _crash(task: _Task) -> int:
    return task.number // (task.number - 3)


def _die(task: _Task) -> int:
    if task.number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return task.number


_BOTH = pytest.mark.parametrize("executor", [SerialExecutor(), LocalExecutor(3)], ids=["serial", "local"])
# Spawned workers take a second of a core to start, which most tests are not about. The output of forks is not captured.
_FORKED = pytest.mark.usefixtures("warm_processes")
_TASKS = [_Task(number) for number in range(8)]


@_BOTH
def test_every_item_is_returned_with_its_result_and_progress(executor: Executor) -> None:
    seen: list[int] = []
    results = dict(executor.map(_square, _TASKS, None, seen.append, item_name))
    assert results == {task: task.number**2 for task in _TASKS}
    assert sum(seen) == sum(task.number for task in _TASKS)


@_BOTH
def test_no_items_are_not_an_error(executor: Executor) -> None:
    assert list(executor.map(_square, [], None, lambda _: None, item_name)) == []


@_BOTH
@_FORKED
def test_a_webtext_error_arrives_as_it_was_raised(executor: Executor) -> None:
    with pytest.raises(InputError, match=r"^the third file is bad$"):
        list(executor.map(_refuse_third, _TASKS, None, lambda _: None, item_name))


@_BOTH
@_FORKED
def test_any_other_error_carries_the_name_of_the_task(executor: Executor) -> None:
    with pytest.raises(TaskError, match=r"^task-3: ZeroDivisionError"):
        list(executor.map(_crash, _TASKS, None, lambda _: None, item_name))


@_FORKED
def test_a_worker_that_is_killed_names_its_task() -> None:
    with pytest.raises(TaskError, match=r"^task-3: its worker process was killed \(out of memory\?\)"):
        list(LocalExecutor(2).map(_die, _TASKS, None, lambda _: None, item_name))


def test_one_worker_needs_no_processes() -> None:
    assert isinstance(make_executor(1), SerialExecutor)
    assert isinstance(make_executor(2), LocalExecutor)


_SLEEPERS = """
    import dataclasses, os, sys, time
    from pathlib import Path
    from pipelines.engine.executor import LocalExecutor


    def sleep(task):
        Path(sys.argv[1], f"{task}-{os.getpid()}").touch()
        time.sleep(60)

    if __name__ == "__main__":
        try:
            list(LocalExecutor(2).map(sleep, ["a", "b"], None, lambda units: None, str))
        except KeyboardInterrupt:
            print("interrupted", flush=True)
            sys.exit(130)
"""


def _gone(process_id: int) -> bool:
    try:
        state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to see whether a process lives")
@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_no_worker_outlives_its_parent(tmp_path: Path, with_signal: signal.Signals) -> None:
    script, folder = tmp_path / "sleepers.py", tmp_path / "started"
    script.write_text(textwrap.dedent(_SLEEPERS))
    folder.mkdir()
    parent = subprocess.Popen(
        [sys.executable, str(script), str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 20
    while len(list(folder.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    workers = [int(path.name.split("-")[1]) for path in folder.iterdir()]
    assert len(workers) == 2
    parent.send_signal(with_signal)
    # To the end, which is that of the workers and of what tracks them: nothing was left behind to complain of.
    output, errors = parent.communicate(timeout=10)
    assert errors == ""
    if with_signal == signal.SIGINT:
        assert (parent.returncode, output) == (130, "interrupted\n")
    deadline = time.monotonic() + 5
    while not all(_gone(worker) for worker in workers) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert all(_gone(worker) for worker in workers)


_STARTERS = """
    import dataclasses, sys, time
    from pipelines.engine.executor import LocalExecutor


    def sleep(task):
        time.sleep(60)

    if __name__ == "__main__":
        try:
            print("starting", flush=True)
            list(LocalExecutor(2).map(sleep, ["a", "b"], None, lambda units: None, str))
        except KeyboardInterrupt:
            sys.exit(130)
"""


@pytest.mark.parametrize("after_s", [0.05, 0.2, 0.4])
def test_ctrl_c_while_workers_start_shows_no_traceback(tmp_path: Path, after_s: float) -> None:
    script = tmp_path / "starters.py"
    script.write_text(textwrap.dedent(_STARTERS))
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == "starting\n"
    time.sleep(after_s)
    # As a terminal does: to the whole group, workers that still import included.
    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=20)
    assert (parent.returncode, errors) == (130, "")


def _work_on(task: _Task) -> int:
    Path(os.environ["STARTED"], f"{task.number}-{os.getpid()}").touch()
    time.sleep(0 if task.number == 0 else 60)
    return task.number


@_FORKED
def test_closing_a_map_ends_its_workers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STARTED", str(tmp_path))
    running = LocalExecutor(2).map(_work_on, [_Task(0), _Task(1), _Task(2)], None, lambda _: None, item_name)
    assert next(running) == (_Task(0), 0)
    deadline = time.monotonic() + 20
    while len(list(tmp_path.iterdir())) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    running.close()
    workers = [int(path.name.split("-")[1]) for path in tmp_path.iterdir()]
    assert len(workers) == 3
    assert all(_gone(worker) for worker in workers)


def _answer_to_nobody(connection: Connection) -> None:
    context = multiprocessing.get_context("spawn")
    _serve(connection, context.RawValue("q", 0), context.RawValue("b", 0))


def test_a_worker_without_a_parent_ends_quietly(capfd: pytest.CaptureFixture[str]) -> None:
    context = multiprocessing.get_context("spawn")
    parent_end, child_end = context.Pipe()
    parent_end.send_bytes(pickle.dumps(("map", _square, None, run_state())))
    parent_end.send_bytes(pickle.dumps(("task", _Task(3), "task-3")))
    # Its task has come, but nobody takes the answer.
    parent_end.close()
    worker = context.Process(target=_answer_to_nobody, args=(child_end,))
    worker.start()
    child_end.close()
    worker.join(20)
    assert worker.exitcode == 0
    assert capfd.readouterr().err == ""


def _process_of(task: _Task) -> int:
    progress.advance(1)
    time.sleep(0.2)
    return os.getpid()


def _initialize() -> None:
    Path(os.environ["STARTED"], str(os.getpid())).touch()


@_FORKED
def test_persistent_workers_serve_several_maps_and_end_with_the_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STARTED", str(tmp_path))
    executor = LocalExecutor(2)
    seen: list[int] = []
    with executor.persistent_workers(_initialize):
        first = {pid for _, pid in executor.map(_process_of, _TASKS[:4], None, seen.append, item_name)}
        assert dict(executor.map(_square, _TASKS, None, lambda _: None, item_name)) == {
            task: task.number**2 for task in _TASKS
        }
        second = {pid for _, pid in executor.map(_process_of, _TASKS[:4], None, seen.append, item_name)}
    assert first == second == {int(path.name) for path in tmp_path.iterdir()}
    assert sum(seen) == 8
    assert all(_gone(worker) for worker in first)


@_FORKED
@pytest.mark.parametrize("ends_early", [_refuse_third, _die, _crash])
def test_after_an_error_persistent_workers_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends_early: Callable[[_Task], int]
) -> None:
    monkeypatch.setenv("STARTED", str(tmp_path))
    executor = LocalExecutor(2)
    with executor.persistent_workers(_initialize):
        with pytest.raises(WebtextError):
            list(executor.map(ends_early, _TASKS, None, lambda _: None, item_name))
        assert all(_gone(int(path.name)) for path in tmp_path.iterdir())
        assert dict(executor.map(_square, _TASKS, None, lambda _: None, item_name)) == {
            task: task.number**2 for task in _TASKS
        }


class _Node:
    """Refers to itself."""

    def __init__(self) -> None:
        self.node = self


_leftover: Callable[[], Any] = object


def _leave_cycle(task: _Task) -> bool:
    global _leftover
    gc.collect()
    is_freed = _leftover() is None
    _leftover = weakref.ref(_Node())
    return is_freed


@_FORKED
def test_persistent_workers_free_what_tasks_of_earlier_maps_left_in_cycles() -> None:
    executor = LocalExecutor(2)
    with executor.persistent_workers():
        for number in range(3):
            results = dict(executor.map(_leave_cycle, _TASKS[:1], None, lambda _: None, item_name))
            assert results == {_TASKS[0]: number > 0}


def _failing_initializer() -> None:
    raise ImportError("no library for that")


def _refusing_initializer() -> None:
    raise InputError("the file is bad")


@pytest.mark.parametrize(
    ("prepare", "kind", "message"),
    [
        (
            _failing_initializer,
            TaskError,
            r"^task-[01]: ImportError: no library for that; --debug shows the traceback$",
        ),
        (_refusing_initializer, InputError, r"^the file is bad$"),
    ],
)
def test_an_error_of_the_initializer_is_raised_as_the_error_of_a_task(
    prepare: Callable[[], None], kind: type[WebtextError], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    executor = LocalExecutor(2)
    with executor.persistent_workers(prepare):
        with pytest.raises(kind, match=message):
            list(executor.map(_square, _TASKS, None, lambda _: None, item_name))
        # The workers after an error are new ones, which prepare nothing.
        assert len(dict(executor.map(_square, _TASKS, None, lambda _: None, item_name))) == len(_TASKS)
    assert capfd.readouterr().err == ""


@_FORKED
def test_with_debug_an_error_of_the_initializer_has_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WEBTEXT_DEBUG", "1")
    executor = LocalExecutor(2)
    with executor.persistent_workers(_failing_initializer), pytest.raises(TaskError, match="in _failing_initializer"):
        list(executor.map(_square, _TASKS, None, lambda _: None, item_name))


def test_a_serial_executor_has_no_persistent_workers() -> None:
    with SerialExecutor().persistent_workers(_initialize):
        assert list(SerialExecutor().map(_square, _TASKS[:1], None, lambda _: None, item_name)) == [(_TASKS[0], 0)]


@pytest.mark.parametrize("error", [OSError("AF_UNIX path length cannot exceed 107 bytes"), Exception("timed out")])
def test_a_ray_that_cannot_start_is_not_a_bug_of_webtext(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def init(**_options: object) -> None:
        raise error

    ray: Any = ModuleType("ray")
    ray.__spec__ = ModuleSpec("ray", None)
    ray.init, ray.is_initialized = init, lambda: False
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    for address, problem in ((None, "cannot start Ray on this machine"), ("auto", "cannot connect to this cluster")):
        message = rf"^--executor ray: {problem} \({address or 'local'}: {error}\); repair it, or omit --executor ray$"
        with pytest.raises(UsageError, match=message):
            list(make_executor(2, "ray", address).map(abs, [1], None, lambda _: None, str))
