"""Runs tasks on a Ray cluster, or on a Ray of this machine. The only module that imports Ray.

Ray runs a task again, up to three times, if its process or its node dies; what a task raises ends the map, as in the
local executor. Only tasks in flight are known to the driver, so their number does not bound its memory.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import os
import pickle
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from pipelines import progress, storage
from pipelines.algorithms.kernels import compile_events
from pipelines.engine.tasks import REMEDY, Executor, MapCall, begin_map, run_state, run_task
from pipelines.errors import TaskError, UsageError
from pipelines.extras import require_extra

# Tasks per core that are submitted, so that a core that becomes free need not wait for the driver.
_SUBMITTED_PER_CORE = 3
_RETRIES = 3
_POLL_S = 0.2
_CANCEL_S = 30.0
_CONNECT_S = 10.0
# How often a task reports its progress at most.
_REPORT_S = 0.5
# Variables of the driver that workers on all nodes get.
_FORWARDED = ("WEBTEXT_DEBUG",)
# Where Ray looks for the token of a cluster. `ray.init` on one machine writes the file.
_TOKEN_VARIABLES = ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
_TOKEN_FILE = "~/.ray/auth_token"


class RayExecutor(Executor):
    """Runs tasks on the nodes of the Ray cluster at `address`; without one, on a Ray that it starts on this machine.

    At most `workers` tasks run at a time, by default as many as there are cores.
    """

    def __init__(self, workers: int | None = None, address: str | None = None) -> None:
        require_extra("ray", "--executor ray", "ray")
        self._limit = workers
        self._address = address
        self._initializer: Callable[[], None] | None = None

    @property
    def workers(self) -> int:
        """How many tasks it runs at the same time; more after nodes were added."""
        return min(self._cores, self._limit or self._cores)

    @property
    def _cores(self) -> int:
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    @property
    def _most_submitted(self) -> int:
        cores = self._cores
        return self._limit if self._limit and self._limit < cores else _SUBMITTED_PER_CORE * cores

    @property
    def memory_bytes(self) -> int | None:
        """See `Executor.memory_bytes`: that of the nodes, not of this machine."""
        return int(self._ray.cluster_resources().get("memory", 0)) or None

    @contextlib.contextmanager
    def persistent_workers(self, initializer: Callable[[], None] | None = None) -> Iterator[None]:
        """See `Executor.persistent_workers`: Ray keeps its processes anyway."""
        self._initializer, previous = initializer, self._initializer
        try:
            yield
        finally:
            self._initializer = previous

    def _map(self, call: MapCall, items: Iterable[Any]) -> Generator[tuple[Any, Any], None, None]:
        ray = self._ray
        memory, gpus = self._memory_request(call.memory_bytes), min(call.gpus, ray.cluster_resources().get("GPU", 0))
        remote = ray.remote(max_retries=_RETRIES, memory=memory, num_gpus=gpus)(_run)
        key = uuid.uuid4().hex
        # A worker process fetches it once, also the actor's handle: as an argument, it would cost more than a task.
        stored = ray.put((self._initializer, call.function, call.context, run_state(), self._running))
        units = _Units(self._running, key, call.on_progress)
        waiting = enumerate(items)
        pending: dict[Any, tuple[int, Any]] = {}
        most_submitted, asked_at = self._most_submitted, time.monotonic()
        try:
            while True:
                if time.monotonic() - asked_at > _REPORT_S:  # not for every task: it takes a millisecond
                    most_submitted, asked_at = self._most_submitted, time.monotonic()
                for number, item in itertools.islice(waiting, max(0, most_submitted - len(pending))):
                    task = remote.options(name=call.name(item))
                    # In a tuple, so that Ray does not fetch what is stored for every task.
                    pending[task.remote((key, stored), (item, call.name(item), number))] = number, item
                if not pending:
                    break
                ray.wait(list(pending), num_returns=1, timeout=_POLL_S)
                ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0)
                for ref in ready:
                    number, item = pending.pop(ref)
                    value, done = self._result(ref, call.name(item))
                    units.finish(number, done)
                    yield item, value
                units.poll(ray)
        finally:
            for ref in pending:
                ray.cancel(ref, force=True)
            if pending:  # no task writes any more when the caller releases its lock
                ray.wait(list(pending), num_returns=len(pending), timeout=_CANCEL_S)

    def _memory_request(self, memory_bytes: int | None) -> int | None:
        """Return the memory to request for a task: at most that of the smallest node, so that it never waits forever.

        A larger task so has a node for itself.
        """
        if memory_bytes is None:
            return None
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"] and node["Resources"].get("CPU")]
        return min([memory_bytes, *(int(resources.get("memory", 0)) for resources in nodes)])

    def _result(self, ref: Any, name: str) -> tuple[Any, int]:
        try:
            reply, units = self._ray.get(ref)
        except self._ray.exceptions.RayError as error:
            reason = str(error).strip().splitlines()[-1]
            raise TaskError(
                f"{name}: its worker process died in {_RETRIES + 1} attempts ({reason}); {REMEDY}"
            ) from error
        kind, value = pickle.loads(reply)
        if kind == "error":
            raise value
        return value, units

    @functools.cached_property
    def _running(self) -> Any:
        """The actor to which tasks report; on the node of the driver: if that dies, the run does anyway."""
        node = self._ray.get_runtime_context().get_node_id()
        here = self._ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        return self._ray.remote(num_cpus=0, scheduling_strategy=here)(_RunningUnits).remote()

    @functools.cached_property
    def _ray(self) -> Any:
        """Ray, connected to the cluster."""
        address = self._address or os.environ.get("RAY_ADDRESS") or "local"
        if any(os.environ.get(name) for name in _TOKEN_VARIABLES) or storage.exists(os.path.expanduser(_TOKEN_FILE)):
            # `ray start` requires the token if there is one, but a driver that names the address does not send it.
            os.environ.setdefault("RAY_AUTH_MODE", "token")
        import ray  # deferred: it takes a second, and few commands need it

        if not ray.is_initialized():
            forwarded = {name: value for name in _FORWARDED if (value := os.environ.get(name))}
            _check_answers(address)
            options: dict[str, Any] = {"address": address, "runtime_env": {"env_vars": forwarded}}
            if address == "local":
                options |= {"num_cpus": self._limit, "include_dashboard": False}
            try:
                ray.init(**options, logging_level=logging.ERROR)
            except Exception as error:  # of any type: Ray raises what its processes and the system report
                problem = "cannot start Ray on this machine" if address == "local" else "cannot connect to this cluster"
                raise UsageError(
                    f"--executor ray: {problem} ({address}: {error}); repair it, or omit --executor ray"
                ) from error
        return ray


def _check_answers(address: str) -> None:
    """Raise UsageError if nothing listens at `HOST:PORT`: Ray itself would try to connect for minutes."""
    if address_parts := re.fullmatch(r"([\w.-]+):(\d{1,5})", address):
        try:
            socket.create_connection((address_parts[1], int(address_parts[2])), _CONNECT_S).close()
        except (OSError, OverflowError) as error:
            raise UsageError(f"{address}: no Ray cluster answers there ({error})") from error


class _Units:
    """The progress of a map: the units of finished tasks, and of running ones as they last reported."""

    def __init__(self, actor: Any, key: str, on_progress: Callable[[int], None]) -> None:
        self._actor = actor
        self._key = key
        self._on_progress = on_progress
        self._finished_tasks: set[int] = set()
        self._finished = self._shown = 0
        self._answer: Any = None
        self._asked_at = 0.0

    def finish(self, task: int, units: int) -> None:
        """Count a finished task."""
        self._finished_tasks.add(task)
        self._finished += units
        self._show(0)

    def poll(self, ray: Any) -> None:
        """Ask for the units of running tasks, and show them if they have arrived."""
        if self._answer is None and time.monotonic() - self._asked_at > _REPORT_S:
            self._answer, self._asked_at = self._actor.units.remote(self._key), time.monotonic()
        if self._answer is not None and ray.wait([self._answer], timeout=0)[0]:
            running, is_compiling = ray.get(self._answer)
            self._answer = None
            if is_compiling:
                progress.note_compilation()
            # The last report of a task may arrive after its end.
            self._show(sum(units for task, units in running.items() if task not in self._finished_tasks))

    def _show(self, running: int) -> None:
        # A task that runs again must not count twice.
        units = self._finished + running - self._shown
        if units > 0:
            self._shown += units
            self._on_progress(units)


class _RunningUnits:
    """An actor to which the running tasks of the latest map report how many units they have finished."""

    def __init__(self) -> None:
        self._key = ""
        self._units: dict[int, int] = {}
        self._is_compiling = False

    def set(self, key: str, task: int, units: int | None) -> None:
        """Set the units of a task of the map `key`; None if it has ended."""
        if key != self._key:
            self._key, self._units = key, {}
        if units is None:
            self._units.pop(task, None)
        else:
            self._units[task] = units

    def note_compilation(self) -> None:
        """Note that a task compiles kernels."""
        self._is_compiling = True

    def units(self, key: str) -> tuple[dict[int, int], bool]:
        """Return the units of the running tasks of a map, and whether one has compiled kernels since the last call."""
        is_compiling, self._is_compiling = self._is_compiling, False
        return (self._units if key == self._key else {}), is_compiling


# In a worker process: function, context and actor of the latest map, and the initializers that were called.
_calls: dict[str, tuple[Any, Any, Any]] = {}
_initialized: set[str] = set()


def _run(call: tuple[str, Any], task: tuple[Any, str, int]) -> tuple[bytes, int]:
    """Run a task (item, name, number) in a worker process: return the reply of `run_task`, and units of progress."""
    item, name, number = task
    lock = threading.Lock()  # a task may have threads
    units, reported_at = 0, time.monotonic()

    def add(more: int) -> None:
        nonlocal units, reported_at
        with lock:
            units += more
            if time.monotonic() - reported_at > _REPORT_S:
                _calls[call[0]][2].set.remote(call[0], number, units)
                reported_at = time.monotonic()

    progress.set_sink(add)
    reply = run_task(lambda: _load(call), item, name)
    if units:
        _calls[call[0]][2].set.remote(call[0], number, None)
    return reply, units


def _load(call: tuple[str, Any]) -> tuple[Any, Any]:
    """Return the function and context of a map, after its initializer."""
    import ray

    key, stored = call
    if key not in _calls:
        _calls.clear()
        initializer, function, context, state, running = ray.get(stored)
        compile_events.set_listener(running.note_compilation.remote)
        begin_map(state)
        if initializer is not None and initializer.__qualname__ not in _initialized:
            initializer()
            _initialized.add(initializer.__qualname__)
        _calls[key] = function, context, running
    return _calls[key][:2]
