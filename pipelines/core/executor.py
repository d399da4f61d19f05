"""Runs a function over tasks: in this process, or in local worker processes.

A task is a small picklable description (paths, config), never data, so that another engine can take the place of these.
The pool is our own, not `concurrent.futures`, for three reasons: the error names the task whose worker died, workers
never outlive a parent that was killed, and Ctrl-C ends them at once (docs/decisions/0003-executor.md).
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar

from pipelines.core import progress
from pipelines.core.errors import TaskError, WebtextError

_POLL_S = 0.2


class Task(Protocol):
    """A small picklable description of a piece of work."""

    @property
    def name(self) -> str:
        """The name that stands in the manifest and in errors."""


TaskType = TypeVar("TaskType", bound=Task)
Result = TypeVar("Result")


class Executor(Protocol):
    """Runs a function over tasks."""

    @property
    def workers(self) -> int:
        """How many tasks it runs at the same time."""

    def map(
        self,
        function: Callable[[TaskType], Result],
        tasks: Iterable[TaskType],
        on_progress: Callable[[int], None],
    ) -> Generator[tuple[TaskType, Result], None, None]:
        """Yield each task with its result as they finish, in any order; close it to end early.

        The first error ends the map and is raised: a WebtextError as it is, another one as a TaskError with its name.
        """

    def persistent_workers(self, prepare: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """Keep worker processes from one map to the next inside a block, and start them when it begins.

        Each calls `prepare` first, which imports what its tasks need, while the caller goes on. What that raises ends
        the next map as a task's error does.
        """


class SerialExecutor:
    """Runs tasks one after the other in this process."""

    workers = 1

    def map(
        self,
        function: Callable[[TaskType], Result],
        tasks: Iterable[TaskType],
        on_progress: Callable[[int], None],
    ) -> Generator[tuple[TaskType, Result], None, None]:
        """See `Executor.map`."""
        for task in tasks:
            progress.set_sink(on_progress)
            try:
                result = function(task)
            except (WebtextError, KeyboardInterrupt):
                raise
            except Exception as error:
                raise TaskError(_crash_message(task.name, error)) from error
            finally:
                progress.set_sink(None)
            yield task, result

    def persistent_workers(self, prepare: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
        """See `Executor.persistent_workers`: there are no worker processes."""
        return contextlib.nullcontext()


class LocalExecutor:
    """Runs tasks in worker processes of this machine, one task a worker at a time."""

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._kept: list[_Worker] | None = None

    @contextlib.contextmanager
    def persistent_workers(self, prepare: Callable[[], None]) -> Iterator[None]:
        """See `Executor.persistent_workers`."""
        self._kept = []
        try:
            for _ in range(self.workers):
                self._kept.append(_Worker(prepare))
            yield
        finally:
            crew, self._kept = self._kept, None
            _end(crew)

    def map(
        self,
        function: Callable[[TaskType], Result],
        tasks: Iterable[TaskType],
        on_progress: Callable[[int], None],
    ) -> Generator[tuple[TaskType, Result], None, None]:
        """See `Executor.map`."""
        waiting = list(tasks)
        waiting.reverse()
        crew: list[_Worker] = [] if self._kept is None else self._kept
        is_done = False
        try:
            for number in range(min(self.workers, len(waiting))):
                if number == len(crew):
                    crew.append(_Worker())
                crew[number].give(function, waiting.pop())
            while any(worker.task is not None for worker in crew):
                for worker in _ready(crew):
                    task, outcome = worker.take()
                    if waiting:
                        worker.give(function, waiting.pop())
                    _report(crew, on_progress)
                    yield task, outcome
                _report(crew, on_progress)
            is_done = True
        finally:
            # Kept workers that are at a task still are ended too: nobody takes their answers.
            if self._kept is None or not is_done:
                _end(crew)
                crew.clear()


def make_executor(workers: int) -> Executor:
    """Return the executor for a number of worker processes."""
    return SerialExecutor() if workers <= 1 else LocalExecutor(workers)


def default_workers() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    """The parent's side of one worker process."""

    def __init__(self, prepare: Callable[[], None] | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        # Without the lock of a Value: it is a named semaphore, which a parent that is killed leaves behind.
        self._counter = context.RawValue("q", 0)
        self._reported = 0
        self.task: Any = None
        # Not daemonic: a task may itself start a child, as extract does to be able to kill it.
        self._process: BaseProcess = context.Process(target=_work, args=(theirs, self._counter, prepare), daemon=False)
        with sigint_blocked():
            self._process.start()
        theirs.close()

    @property
    def wait_for(self) -> list[Any]:
        """What becomes ready when the worker has answered or died."""
        return [self._connection, self._process.sentinel]

    def give(self, function: Callable[[Any], Any], task: Any) -> None:
        """Send a task and what to do with it."""
        self.task = task
        # A worker that died before this shows in `take`, by its exit code.
        with contextlib.suppress(BrokenPipeError):
            self._connection.send_bytes(pickle.dumps((function, task)))

    def take(self) -> tuple[Any, Any]:
        """Return the task and its result; raise what the task raised."""
        task, self.task = self.task, None
        try:
            kind, value = pickle.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionError):
            self._process.join()
            raise TaskError(_death_message(task.name, self._process.exitcode)) from None
        if kind == "error":
            raise value
        return task, value

    def new_progress(self) -> int:
        """Return the units finished since the last call."""
        done = int(self._counter.value)
        fresh, self._reported = done - self._reported, done
        return fresh

    def kill(self) -> None:
        """Kill the process: whatever it still does is not wanted, and what it finished stands."""
        self._process.kill()

    def close(self) -> None:
        """Wait until the killed process is gone, and free what belongs to it."""
        self._process.join()
        self._process.close()
        self._connection.close()


def _end(crew: list[_Worker]) -> None:
    """Kill all workers, and let a second Ctrl-C wait until none is left."""
    with sigint_blocked():
        for worker in crew:
            worker.kill()
        for worker in crew:
            worker.close()


def _ready(crew: list[_Worker]) -> list[_Worker]:
    """Return the busy workers that have answered or died, waiting a moment for one."""
    busy = [worker for worker in crew if worker.task is not None]
    ready = set(multiprocessing.connection.wait([each for worker in busy for each in worker.wait_for], _POLL_S))
    return [worker for worker in busy if ready.intersection(worker.wait_for)]


def _report(crew: list[_Worker], on_progress: Callable[[int], None]) -> None:
    if fresh := sum(worker.new_progress() for worker in crew):
        on_progress(fresh)


def _work(connection: Connection, counter: Any, prepare: Callable[[], None] | None = None) -> None:
    """Serve tasks in a worker process until the parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends its workers
    exit_with_parent()
    lock = threading.Lock()  # a task may have threads; the parent only reads

    def add(units: int) -> None:
        with lock:
            counter.value += units

    progress.set_sink(add)
    failure = None if prepare is None else _failure(prepare)
    # The parent may be gone when a task is asked for and when it is answered; nobody is left to be told then.
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            function, task = pickle.loads(connection.recv_bytes())
            connection.send_bytes(_answer(function, task, failure))


def _failure(prepare: Callable[[], None]) -> Exception | None:
    """Call `prepare` and return what it raised, with which the worker's task is then answered."""
    try:
        prepare()
    except Exception as error:  # noqa: BLE001 - the parent raises it, by the name of the task
        return error
    return None


def _answer(function: Callable[[Any], Any], task: Any, failure: Exception | None) -> bytes:
    try:
        if failure is not None:
            raise failure
        return pickle.dumps(("result", function(task)))
    except WebtextError as error:
        return pickle.dumps(("error", error))
    except Exception as error:  # noqa: BLE001 - the parent raises it, by the name of the task
        return pickle.dumps(("error", TaskError(_crash_message(task.name, error))))


@contextlib.contextmanager
def sigint_blocked() -> Iterator[None]:
    """Hold back Ctrl-C while a process is started.

    The child inherits this, so that it does not die of Ctrl-C with a traceback while it still imports; its parent ends
    it. The parent gets its interrupt when the block ends.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # The first process starts Python's resource tracker before itself, and that allows interrupts again.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def exit_with_parent() -> None:
    """Make this process end when the one that started it is gone, even by `kill -9`."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _crash_message(name: str, error: BaseException) -> str:
    where = "".join(traceback.format_exception(error)) if os.environ.get("WEBTEXT_DEBUG") else ""
    return f"{name}: {type(error).__name__}: {error}" + (f"\n{where}" if where else "; --debug shows where")


def _death_message(name: str, exit_code: int | None) -> str:
    if exit_code == -signal.SIGKILL:
        return f"{name}: its worker was killed (out of memory?); try fewer --workers, then run again: it goes on"
    return f"{name}: its worker process died with exit code {exit_code}; run again: it goes on from what is finished"
