"""Errors that a user can act on; the command line prints them as one line."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator

from pipelines.format import escape_controls, mask_credentials

# Messages quote values of untrusted files, which may have megabytes.
_MAX_MESSAGE_CHARACTERS = 2000


class WebtextError(Exception):
    """Base class: the message names the cause and the remedy, and ends a command with exit code 1."""

    exit_code = 1

    def __str__(self) -> str:
        """Return the message in one line; of a long one the beginning, which names the file, and the end, the remedy.

        It can quote any character of a file: those that a terminal would obey are written as `\\u001b`.
        """
        return shorten_message(" ".join(super().__str__().splitlines()))


class UsageError(WebtextError):
    """Invalid options or arguments (exit code 2)."""

    exit_code = 2


class InputError(WebtextError):
    """An input is missing, empty, unreadable, or lacks the requested field."""


class DamagedFileError(InputError):
    """A compressed file is truncated or corrupt near an offset in its compressed bytes."""

    def __init__(self, message: str, offset_bytes: int = 0, reason: str = "") -> None:
        super().__init__(message)  # alone, as what is pickled for another process
        self.offset_bytes, self.reason = offset_bytes, reason


class DamagedShardError(WebtextError):
    """A shard is missing or does not match the checksum in its manifest."""


class ChangedRunError(WebtextError):
    """An output folder was built with a different config, version or input."""


class LockedError(WebtextError):
    """Another process is writing to the output folder."""


class StorageError(WebtextError):
    """The file system refused a read or write."""


class TaskError(WebtextError):
    """A task failed; the message names it and the cause, with --debug a note has the traceback."""


def format_message(text: str, one_line: bool = True) -> str:
    """Return the text of a message without credentials, and with visible control characters."""
    return escape_controls(mask_credentials(text), one_line)


def shorten_message(message: str) -> str:
    """Return the text of a message, with its middle left out if it is longer than 2,000 characters."""
    half = _MAX_MESSAGE_CHARACTERS // 2
    if len(message) > 100 * half:
        message = message[: 50 * half] + message[-50 * half :]
    message = format_message(message)  # before it is cut for good, so that no part of a password remains
    return message if len(message) <= 2 * half else f"{message[:half]} [...] {message[-half:]}"


@contextlib.contextmanager
def translate_format_errors(path: str, expected: str) -> Iterator[None]:
    """Raise InputError, naming the file, for what Python raises if its content is not of the expected form.

    `expected` completes "PATH: is not": "a description of token shards; re-run `webtext tokenize`".
    """
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, RecursionError) as error:
        what, semicolon, remedy = expected.partition(";")
        raise InputError(f"{path}: is not {what} ({_describe(error)}){semicolon}{remedy}") from error


def _describe(error: Exception) -> str:
    """Return the first line of an error; the messages of these types alone are only a key or a value."""
    message = next(iter(str(error).splitlines()), "")
    return f"no {message}" if isinstance(error, KeyError) else message or type(error).__name__


def exception_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that it wraps, outermost first, without repetition.

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
