"""Runs tasks in local worker processes, and chooses the executor of a command.

The pool is not `concurrent.futures`, for three reasons: the error names the task whose worker died, workers never
outlive a parent that was killed, and Ctrl-C ends them at once (docs/decisions/0003-executor.md).
"""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from pipelines import progress
from pipelines.algorithms.kernels import compile_events
from pipelines.engine.tasks import REMEDY, Executor, MapCall, NameOf, SerialExecutor, begin_map, run_state, run_task
from pipelines.errors import TaskError, UsageError
from pipelines.format import plural

_POLL_S = 0.2
ENGINES = ("local", "ray")
_MAX_WORKERS_PER_CORE = 4


class LocalExecutor(Executor):
    """Runs tasks in worker processes of this machine, one task per worker at a time."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._persistent: list[_Worker] | None = None

    @contextlib.contextmanager
    def persistent_workers(self, initializer: Callable[[], None] | None = None) -> Iterator[None]:
        """See `Executor.persistent_workers`."""
        self._persistent = []
        try:
            for _ in range(self.workers):
                self._persistent.append(_Worker(initializer))
            yield
        finally:
            workers, self._persistent = self._persistent, None
            _end(workers)

    @property
    def workers(self) -> int:
        """How many tasks it runs at the same time."""
        return self._workers

    def _map(self, call: MapCall, items: Iterable[Any]) -> Generator[tuple[Any, Any], None, None]:
        waiting = list(items)
        waiting.reverse()
        message = pickle.dumps(("map", call.function, call.context, run_state()))
        workers: list[_Worker] = [] if self._persistent is None else self._persistent
        complete = False
        try:
            for number in range(min(self.workers, len(waiting))):
                if number == len(workers):
                    workers.append(_Worker())
                workers[number].send(message)
                workers[number].start_task(waiting.pop(), call.name)
            while any(worker.is_busy for worker in workers):
                for worker in _ready(workers):
                    item, result = worker.finish_task()
                    if waiting:
                        worker.start_task(waiting.pop(), call.name)
                    _report(workers, call.on_progress)
                    yield item, result
                _report(workers, call.on_progress)
            complete = True
        finally:
            # Also end persistent workers that still run a task, since their results are not read.
            if self._persistent is None or not complete:
                _end(workers)
                workers.clear()


def make_executor(workers: int | None = None, engine: str = "local", ray_address: str | None = None) -> Executor:
    """Return the executor for a number of worker processes, by default one per core of this machine or of the cluster.

    `engine` is `local`, or `ray` for the cluster at `ray_address`, without one a Ray on this machine. Raises UsageError
    for another one, for an address without Ray, if Ray is not installed, and for more workers than cores can serve.
    """
    if engine not in ENGINES:
        raise UsageError(f"executor {engine!r}: expected {' or '.join(ENGINES)}")
    if engine == "ray":
        from pipelines.engine.ray_executor import RayExecutor  # deferred: few runs need it

        return RayExecutor(workers, ray_address)
    if ray_address:
        raise UsageError("a Ray address has no effect on the local executor; use --executor ray")
    cores = default_workers()
    if workers and workers > (limit := _MAX_WORKERS_PER_CORE * cores):
        raise UsageError(f"--workers {workers:,}: this machine has {plural(cores, 'core')}; use at most {limit}")
    workers = workers or cores
    return SerialExecutor() if workers <= 1 else LocalExecutor(workers)


def default_workers() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Worker:
    """The parent's side of one worker process."""

    def __init__(self, initializer: Callable[[], None] | None = None) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, child_end = context.Pipe()
        # RawValue has no lock: that would be a named semaphore, which leaks if the parent is killed.
        self._counter = context.RawValue("q", 0)
        self.compiling = context.RawValue("b", 0)
        self._reported = 0
        self._task: tuple[Any, str] | None = None
        # Not daemonic: a task may itself start a child, as extract does to be able to kill it.
        self.process: BaseProcess = context.Process(
            target=_serve, args=(child_end, self._counter, self.compiling, initializer), daemon=False
        )
        with sigint_blocked():
            self.process.start()
        child_end.close()

    @property
    def is_busy(self) -> bool:
        """Whether a task was started and its result not received yet."""
        return self._task is not None

    def start_task(self, item: Any, name: NameOf) -> None:
        """Send an item."""
        self._task = item, name(item)
        self.send(pickle.dumps(("task", *self._task)))

    def finish_task(self) -> tuple[Any, Any]:
        """Return the item and its result; raise what the task raised."""
        assert self._task is not None
        (item, name), self._task = self._task, None
        try:
            kind, value = pickle.loads(self.connection.recv_bytes())
        except (EOFError, ConnectionError):
            self.process.join()
            exit_code = self.process.exitcode
            death = (
                "was killed (out of memory?)" if exit_code == -signal.SIGKILL else f"died with exit code {exit_code}"
            )
            raise TaskError(f"{name}: its worker process {death}; {REMEDY}") from None
        if kind == "error":
            raise value
        return item, value

    def new_progress(self) -> int:
        """Return the units finished since the last call."""
        done = int(self._counter.value)
        units, self._reported = done - self._reported, done
        return units

    def send(self, message: bytes) -> None:
        """Send the function and context of a map, or a task."""
        # A worker that died before this shows in `finish_task`, by its exit code.
        with contextlib.suppress(BrokenPipeError):
            self.connection.send_bytes(message)


def _end(workers: list[_Worker]) -> None:
    """Kill all workers; a second Ctrl-C is held back until all have exited."""
    with sigint_blocked():
        for worker in workers:
            worker.process.kill()
        for worker in workers:
            worker.process.join()
            worker.process.close()
            worker.connection.close()


def _ready(workers: list[_Worker]) -> list[_Worker]:
    """Return the busy workers that have replied or died; wait for up to 0.2 seconds."""
    busy = [worker for worker in workers if worker.is_busy]
    handles = [handle for worker in busy for handle in (worker.connection, worker.process.sentinel)]
    ready = multiprocessing.connection.wait(handles, _POLL_S)
    return [worker for worker in busy if worker.connection in ready or worker.process.sentinel in ready]


def _report(workers: list[_Worker], on_progress: Callable[[int], None]) -> None:
    for worker in workers:
        if worker.compiling.value:
            worker.compiling.value = 0
            progress.note_compilation()
    if units := sum(worker.new_progress() for worker in workers):
        on_progress(units)


def _serve(connection: Connection, counter: Any, compiling: Any, initializer: Callable[[], None] | None = None) -> None:
    """Run tasks in a worker process until the parent ends it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends its workers
    exit_with_parent()
    lock = threading.Lock()  # a task may have threads; the parent only reads

    def add(units: int) -> None:
        with lock:
            counter.value += units

    def note_compilation() -> None:
        compiling.value = 1

    progress.set_sink(add)
    compile_events.set_listener(note_compilation)
    gc.disable()  # until the modules of the tasks are imported
    failure: Exception | None = None
    try:
        if initializer is not None:
            initializer()
    except Exception as error:  # noqa: BLE001 - the result of each task, so that the parent raises it with a name
        failure = error
    call: Any = None  # the function and context of the current map

    def load() -> Any:
        if failure is not None:
            raise failure
        return call

    # The parent may have exited by the time an item is read or a result is sent.
    with contextlib.suppress(EOFError, ConnectionError):
        while True:
            kind, *message = pickle.loads(connection.recv_bytes())
            if kind == "map":
                if not gc.isenabled():  # the first: what tasks leave in cycles must not be frozen
                    gc.freeze()  # modules stay, so no collection needs to examine them
                    gc.enable()
                *call, state = message
                begin_map(state)
            else:
                connection.send_bytes(run_task(load, *message))


@contextlib.contextmanager
def sigint_blocked() -> Iterator[None]:
    """Block SIGINT while a process is started.

    The child inherits the mask, so that Ctrl-C during its imports prints no traceback; the parent ends the child. The
    parent receives the signal when the block ends.
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
    """Exit this process when its parent has exited, even by `kill -9`."""
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
