"""Runs tasks on a Ray cluster, or on a Ray of this machine. The only module that imports Ray.

Ray runs a task again, up to three times, if its process or its node dies; what a task raises ends the map, as in the
local executor. Only tasks in flight are known to the driver, so their number does not bound its memory. A task reports
its progress with its result; Ray's dashboard shows which tasks are running.
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
from pipelines.engine.tasks import REMEDY, Executor, MapCall, begin_map, run_state, run_task
from pipelines.errors import TaskError, UsageError
from pipelines.extras import require_extra

# Tasks per core that are submitted, so that a core that becomes free need not wait for the driver.
_SUBMITTED_PER_CORE = 3
_RETRIES = 3
_POLL_S = 0.2
_CANCEL_S = 30.0
_CONNECT_S = 10.0
# How often the driver asks for the size of the cluster at most.
_ASK_S = 0.5
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
        # A worker process fetches it once: as an argument, it would cost more than a task.
        stored = ray.put((self._initializer, call.function, call.context, run_state()))
        waiting = iter(items)
        pending: dict[Any, Any] = {}
        most_submitted, asked_at = self._most_submitted, time.monotonic()
        try:
            while True:
                if time.monotonic() - asked_at > _ASK_S:  # not for every task: it takes a millisecond
                    most_submitted, asked_at = self._most_submitted, time.monotonic()
                for item in itertools.islice(waiting, max(0, most_submitted - len(pending))):
                    task = remote.options(name=call.name(item))
                    # In a tuple, so that Ray does not fetch what is stored for every task.
                    pending[task.remote((key, stored), item, call.name(item))] = item
                if not pending:
                    break
                ray.wait(list(pending), num_returns=1, timeout=_POLL_S)
                ready, _ = ray.wait(list(pending), num_returns=len(pending), timeout=0)
                for ref in ready:
                    item = pending.pop(ref)
                    value, units = self._result(ref, call.name(item))
                    if units:
                        call.on_progress(units)
                    yield item, value
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


# In a worker process: function and context of the latest map, and the initializers that were called.
_calls: dict[str, tuple[Any, Any]] = {}
_initialized: set[str] = set()


def _run(call: tuple[str, Any], item: Any, name: str) -> tuple[bytes, int]:
    """Run a task in a worker process: return the reply of `run_task`, and units of progress."""
    lock = threading.Lock()  # a task may have threads
    units = 0

    def add(more: int) -> None:
        nonlocal units
        with lock:
            units += more

    progress.set_sink(add)
    return run_task(lambda: _load(call), item, name), units


def _load(call: tuple[str, Any]) -> tuple[Any, Any]:
    """Return the function and context of a map, after its initializer."""
    import ray

    key, stored = call
    if key not in _calls:
        _calls.clear()
        initializer, function, context, state = ray.get(stored)
        begin_map(state)
        if initializer is not None and initializer.__qualname__ not in _initialized:
            initializer()
            _initialized.add(initializer.__qualname__)
        _calls[key] = function, context
    return _calls[key]
