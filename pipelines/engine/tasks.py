"""A function that is called with every item of a list: in this process, and what other executors share with that.

An item is a small picklable description (a path, a number), never data.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import operator
import os
import pickle
import traceback
from collections.abc import Callable, Generator, Iterable
from typing import Any, TypeVar

from pipelines import progress
from pipelines.engine import machine
from pipelines.errors import TaskError, WebtextError
from pipelines.storage import local_cache, object_store

# At the end of the message that a worker was killed.
REMEDY = "re-run the same command to resume, with fewer --workers if memory ran out"

Item = TypeVar("Item")
Result = TypeVar("Result")
NameOf = Callable[[Any], str]
"""Returns the name of an item, which appears in the manifest and in errors."""
item_name: NameOf = operator.attrgetter("name")


@dataclasses.dataclass(frozen=True)
class MapCall:
    """The arguments of `Executor.map` other than the items."""

    function: Callable[..., Any]
    context: Any
    on_progress: Callable[[int], None]
    name: NameOf
    memory_bytes: int | None
    gpus: int


class Executor(abc.ABC):
    """Runs a function over items."""

    @property
    @abc.abstractmethod
    def workers(self) -> int:
        """How many tasks it runs at the same time."""

    @property
    def memory_bytes(self) -> int | None:
        """The memory available to all its tasks together, None if it is unknown."""
        return machine.available_memory_bytes()

    def map(
        self,
        function: Callable[..., Result],
        items: Iterable[Item],
        context: Any,
        on_progress: Callable[[int], None],
        name: NameOf,
        memory_bytes: int | None = None,
        gpus: int = 0,
    ) -> Generator[tuple[Item, Result], None, None]:
        """Yield each item with the result of `function(item, context)` as it finishes; close it to end early.

        The first error ends the map and is raised: a WebtextError as it is, any other as a TaskError with the item's
        name. Without a context (None), `function(item)` is called. `memory_bytes` and `gpus` are what a task needs, for
        an executor that chooses a machine for it; GPUs only where there are some.
        """
        return self._map(MapCall(function, context, on_progress, name, memory_bytes, gpus), items)

    @abc.abstractmethod
    def _map(self, call: MapCall, items: Iterable[Any]) -> Generator[tuple[Any, Any], None, None]:
        """Implement `map`."""

    def persistent_workers(
        self, initializer: Callable[[], None] | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """Start worker processes and keep them from one map to the next inside a block.

        Each calls `initializer` first, if there is one, while the caller continues; it imports what the tasks need. An
        error that it raises ends the next map like the error of a task.
        """
        return contextlib.nullcontext()


class SerialExecutor(Executor):
    """Runs tasks one after the other in this process."""

    workers = 1

    def _map(self, call: MapCall, items: Iterable[Any]) -> Generator[tuple[Any, Any], None, None]:
        for item in items:
            previous = progress.set_sink(call.on_progress)
            try:
                result = _call(call.function, item, call.context)
            except (WebtextError, KeyboardInterrupt):
                raise
            except Exception as error:
                raise _crash(call.name(item), error) from error
            finally:
                progress.set_sink(previous)  # that of the task of another run, inside which this one runs
            yield item, result


def _call(function: Callable[..., Result], item: Any, context: Any) -> Result:
    return function(item) if context is None else function(item, context)


def run_state() -> tuple[dict[str, tuple[str, float]], str]:
    """Return what worker processes must know of a run: its locks and its name."""
    return dict(object_store.leases), local_cache.current_run()


def begin_map(state: tuple[dict[str, tuple[str, float]], str]) -> None:
    """Begin a map in a worker process, with the state of the run."""
    leases, run = state
    object_store.leases.clear()
    object_store.leases.update(leases)
    local_cache.begin_run(run)


def run_task(load: Callable[[], tuple[Any, Any]], item: Any, name: str) -> bytes:
    """Call a function with an item and a context, after `load` has returned function and context.

    Return "result" and the result, or "error" and the WebtextError that the parent is to raise, pickled.
    """
    try:
        function, context = load()
        return pickle.dumps(("result", _call(function, item, context)))
    except WebtextError as error:
        return pickle.dumps(("error", error))
    except Exception as error:  # noqa: BLE001 - the parent raises it, with the name of the task
        return pickle.dumps(("error", _crash(name, error)))


def _crash(name: str, error: BaseException) -> TaskError:
    crash = TaskError(f"{name}: {type(error).__name__}: {error}; --debug shows the traceback")
    if os.environ.get("WEBTEXT_DEBUG"):
        crash.add_note("".join(traceback.format_exception(error)))
    return crash
