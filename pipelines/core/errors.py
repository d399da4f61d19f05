"""Errors that a user can act on; the command line prints them as one line."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator


class WebtextError(Exception):
    """Stop a command with a message that names the cause and the remedy (exit code 1)."""

    exit_code = 1


class UsageError(WebtextError):
    """Refuse wrong options or arguments (exit code 2)."""

    exit_code = 2


class InputError(WebtextError):
    """Refuse an input: missing, empty, unreadable, or without the requested field."""


class DamagedFileError(InputError):
    """Refuse a compressed file that is truncated or corrupt, with the offset reached in its compressed bytes."""

    def __init__(self, path: str, offset_bytes: int, reason: str) -> None:
        super().__init__(f"{path}: is truncated or corrupt near compressed byte {offset_bytes} ({reason})")
        self.path, self.offset_bytes, self.reason = path, offset_bytes, reason

    def __reduce__(self) -> tuple[type[DamagedFileError], tuple[str, int, str]]:
        """Pickle all three arguments, to travel between processes."""
        return type(self), (self.path, self.offset_bytes, self.reason)


class DamagedShardError(WebtextError):
    """Refuse a shard that is missing or does not match the checksum in its manifest."""


class ChangedRunError(WebtextError):
    """Refuse an output folder that was built with a different config, version or input."""


class LockedError(WebtextError):
    """Refuse an output folder that another process is writing."""


class StorageError(WebtextError):
    """Report a read or write that the file system refused."""


class TaskError(WebtextError):
    """Report the name of a task that failed, and why."""


def exception_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and all that it wraps, each once, outermost first.

    HTTP libraries keep the original exception in different places: requests in `args`, urllib3 in `reason`, prawcore in
    `original_exception`.
    """
    seen: set[int] = set()
    pending: deque[object] = deque([error])
    while pending:
        candidate = pending.popleft()
        if not isinstance(candidate, BaseException) or id(candidate) in seen:
            continue
        seen.add(id(candidate))
        yield candidate
        pending += (getattr(candidate, "original_exception", None), getattr(candidate, "reason", None))
        pending += (*candidate.args, candidate.__cause__, candidate.__context__)
