"""The threads that wait for servers: daemons whose sockets are closed at the end, so that none of them blocks exit."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable

from pipelines.core.errors import WebtextError
from pipelines.stages.fetch.transport import Client
from pipelines.stages.fetch.visit import Step, Visit, failed_step

_JOIN_TIMEOUT_S = 2.0


class Threads:
    """Runs steps of visits concurrently; a context manager that one thread creates, feeds and closes."""

    def __init__(self, count: int, client: Client, run_step: Callable[[Visit], Step]) -> None:
        self._client = client
        self._run_step = run_step
        self._visits: queue.SimpleQueue[Visit | None] = queue.SimpleQueue()
        self._steps: queue.SimpleQueue[Step | WebtextError] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(count)]
        self.idle = count

    def __enter__(self) -> Threads:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        for _ in self._threads:
            self._visits.put(None)
        self._client.close()
        deadline = time.monotonic() + _JOIN_TIMEOUT_S
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def submit(self, visit: Visit) -> None:
        """Run the next step of a visit in an idle thread."""
        self.idle -= 1
        self._visits.put(visit)

    def next_step(self, timeout_s: float) -> Step | None:
        """Wait for a finished step and return it; None after the timeout. Raises the WebtextError of a step."""
        try:
            step = self._steps.get(timeout=timeout_s)
        except queue.Empty:
            return None
        finally:
            self._client.abort_overdue()
        self.idle += 1
        if isinstance(step, WebtextError):
            raise step
        return step

    def _serve(self) -> None:
        while (visit := self._visits.get()) is not None:
            try:
                self._steps.put(self._run_step(visit))
            except WebtextError as error:  # such as a full disk: `next_step` raises it in the calling thread
                self._steps.put(error)
            except Exception as error:  # noqa: BLE001 - whatever a response causes is the outcome of its link
                self._steps.put(failed_step(visit, error))
