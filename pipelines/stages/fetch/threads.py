"""The threads that wait for servers: daemons, whose sockets are shut at the end, so that nothing hangs on them."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType

from pipelines.core.errors import WebtextError
from pipelines.stages.fetch.transport import Client
from pipelines.stages.fetch.visit import Step, Visit, broken_step

_END_TIMEOUT_S = 2.0


class Threads:
    """Runs steps of visits at the same time; made, asked and ended by one thread, as a context manager."""

    def __init__(self, count: int, client: Client, take_step: Callable[[Visit], Step]) -> None:
        self._client = client
        self._take_step = take_step
        self._visits: queue.SimpleQueue[Visit | None] = queue.SimpleQueue()
        self._steps: queue.SimpleQueue[Step | WebtextError] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(count)]
        self.idle = count

    def __enter__(self) -> Threads:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for _ in self._threads:
            self._visits.put(None)
        self._client.close()
        give_up_at = time.monotonic() + _END_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, give_up_at - time.monotonic()))

    def submit(self, visit: Visit) -> None:
        """Give a visit to an idle thread."""
        self.idle -= 1
        self._visits.put(visit)

    def take(self, timeout_s: float) -> Step | None:
        """Return a finished step, waiting for one; None after the timeout. Raises a step's WebtextError."""
        try:
            step = self._steps.get(timeout=timeout_s)
        except queue.Empty:
            return None
        finally:
            self._client.end_overdue()
        self.idle += 1
        if isinstance(step, WebtextError):
            raise step
        return step

    def _serve(self) -> None:
        while (visit := self._visits.get()) is not None:
            try:
                self._steps.put(self._take_step(visit))
            except WebtextError as error:  # the disk is full, say: `take` raises it in the thread that asks
                self._steps.put(error)
            except Exception as error:  # noqa: BLE001 - what a server makes us raise is the outcome of its link
                self._steps.put(broken_step(visit, error))
