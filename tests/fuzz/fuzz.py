"""Runs every parser of untrusted bytes on mutated inputs (`make fuzz`); exit code 1 if one of them fails.

An input passes if its parser returns, or raises one of webtext's own errors with a short message. It fails if the
parser raises anything else, ends the process, or exceeds the limits of time, memory or output below.

    python tests/fuzz/fuzz.py --seconds 600            all targets, after the kept seeds
    python tests/fuzz/fuzz.py --only robots --seed 7   one target, with the inputs of an earlier run
    python tests/fuzz/fuzz.py FOLDER/TARGET/FILE ...   replay inputs of the target that their folder names
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import hashlib
import itertools
import mmap
import os
import pickle
import random
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(Path(__file__).parent)]

import fuzz_files  # noqa: E402, F401 - these three add the targets
import fuzz_folders  # noqa: E402, F401
import fuzz_web  # noqa: E402, F401
from fuzz_mutations import mutate  # noqa: E402
from fuzz_targets import TARGETS, Target  # noqa: E402

SEEDS = Path(__file__).parent / "seeds"
FAILURES = REPOSITORY / "fuzz-failures"

# For inputs of at most 1 MiB. Bounded readers take some hundred MiB for the largest text that they allow.
MAX_SECONDS = 30.0
_MEMORY_BYTES = 1 << 30
_ADDRESS_SPACE_BYTES = 8 << 30
_OUTPUT_BYTES = 4000
_MESSAGE_CHARACTERS = 2100
# A target that fails more often is not run further.
_MAX_FAILURES = 10
_FRAME = re.compile(r'File "[^"]*?((?:pipelines|webtext_cli|site-packages)/[^"]*)", line (\d+)')


class UnacceptableError(Exception):
    """The parser's answer to an input is none that a user should get."""


@dataclasses.dataclass(frozen=True)
class Failure:
    """An input that failed, and the end of what its process wrote."""

    target: str
    number: int
    data: bytes
    log: str
    signature: str


class _Progress:
    """What the child has done, in memory that outlives it: per target the next input, and when its time is over."""

    def __init__(self, targets: int) -> None:
        self._values = memoryview(mmap.mmap(-1, 8 * (1 + 2 * targets))).cast("d")
        self._targets = targets

    @property
    def target(self) -> int:
        return int(self._values[0])

    @target.setter
    def target(self, index: int) -> None:
        self._values[0] = index

    def number(self, target: int) -> int:
        return int(self._values[1 + target])

    def set_number(self, target: int, number: int) -> None:
        self._values[1 + target] = number

    def end(self, target: int) -> float:
        return self._values[1 + self._targets + target]

    def set_end(self, target: int, end: float) -> None:
        self._values[1 + self._targets + target] = end


def fixed_inputs(target: Target) -> list[bytes]:
    """Return the inputs that every run begins with: the valid ones, and those that failed once."""
    kept = sorted((SEEDS / target.name).iterdir()) if (SEEDS / target.name).is_dir() else []
    return [*target.seeds(), *(path.read_bytes() for path in kept)]


def check(target: Target, data: bytes, folder: Path, must_accept: bool = False) -> None:
    """Run a target on an input; raise if the outcome is not acceptable."""
    from pipelines.errors import TaskError, WebtextError
    from pipelines.format import escape_controls

    written, memory = os.fstat(2).st_size, _peak_memory()
    faulthandler.dump_traceback_later(MAX_SECONDS, exit=True)
    try:
        target.run(data, folder)
    except TaskError:
        raise  # an unexpected exception in a task
    except WebtextError as error:
        message = str(error)
        if must_accept:
            raise UnacceptableError(f"a valid input is refused: {message}") from error
        if len(message) > _MESSAGE_CHARACTERS or escape_controls(message, one_line=True) != message:
            raise UnacceptableError(f"not one line of text: {message!r}") from error
        if str(pickle.loads(pickle.dumps(error))) != message:
            raise UnacceptableError("the error does not pass between processes") from error
    finally:
        faulthandler.cancel_dump_traceback_later()
    if _peak_memory() - memory > _MEMORY_BYTES:
        raise UnacceptableError(f"{(_peak_memory() - memory) >> 20} MiB of memory for {len(data)} bytes")
    sys.stdout.flush()
    sys.stderr.flush()
    if os.fstat(2).st_size - written > _OUTPUT_BYTES:
        raise UnacceptableError("much output")


def _peak_memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def _start_child(log: Path) -> int:
    """Fork; in the child (0), send all output to the log and limit the memory."""
    if process := os.fork():
        return process
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_SPACE_BYTES, _ADDRESS_SPACE_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    return 0


def _run_child(targets: Sequence[Target], seconds: float, seed: int, folder: Path, progress: _Progress) -> None:
    """Run each target for its part of the time, from where an earlier child has ended."""
    for index in range(progress.target, len(targets)):
        target = targets[index]
        progress.target = index
        (folder / "input").write_bytes(b"")  # for a failure before the first input
        fixed = fixed_inputs(target)
        if not progress.end(index):
            progress.set_end(index, time.monotonic() + seconds)
        for number in itertools.count(progress.number(index)):
            if number < len(fixed):
                data = fixed[number]
            elif time.monotonic() < progress.end(index):
                # An input depends on nothing but these three, so that the same seed gives the same inputs.
                data = mutate(random.Random(f"{seed}/{target.name}/{number}"), fixed, target.words)
            else:
                break
            (folder / "input").write_bytes(data)
            check(target, data, folder / target.name, must_accept=number == 0)
            progress.set_number(index, number + 1)


def fuzz(targets: Sequence[Target], seconds: float, seed: int, counts: dict[str, int]) -> Iterator[Failure]:
    """Yield the failures of targets, each cause once; each target gets its part of the time after its fixed inputs."""
    progress = _Progress(len(targets))
    failures: dict[str, int] = dict.fromkeys(TARGETS, 0)
    known: set[tuple[str, str]] = set()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        while True:
            child = _start_child(log)
            if not child:
                tempfile.tempdir = folder  # which the parent removes
                _exit_after(lambda: _run_child(targets, seconds / len(targets), seed, Path(folder), progress))
            _, status = os.waitpid(child, 0)
            counts |= {target.name: progress.number(index) for index, target in enumerate(targets)}
            if status == 0:
                return
            index = progress.target
            target, number = targets[index], progress.number(index)
            progress.set_number(index, number + 1)
            failures[target.name] += 1
            if failures[target.name] == _MAX_FAILURES:
                progress.target = index + 1  # whose inputs come next
            text = log.read_text(errors="replace")
            signature = _signature(status, text)
            if (target.name, signature) not in known:
                known.add((target.name, signature))
                yield Failure(target.name, number, (Path(folder) / "input").read_bytes(), text[-6000:], signature)


def _exit_after(work: object) -> None:
    """Call a function and end this process: with 1, and a traceback in the log, if it raises anything."""
    try:
        work()  # type: ignore[operator]
    except BaseException:  # noqa: BLE001 - whatever it is, it is a failure
        import traceback

        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _signature(status: int, log: str) -> str:
    """Return the kind of failure and the innermost frame in our code, by which equal failures are recognized."""
    frames = [f"{path}:{line}" for path, line in _FRAME.findall(log) if not path.startswith("site-packages")]
    if os.WIFSIGNALED(status):
        return f"{signal.Signals(os.WTERMSIG(status)).name} {frames[:1]}"
    if "Timeout (" in log:
        return f"timeout {frames[:1]}"
    error = log.rstrip().rpartition("\n")[2].partition(":")[0].rpartition(".")[2]
    return f"{error[:80]} {frames[-1:]}"


def _save(failure: Failure) -> Path:
    path = FAILURES / failure.target / hashlib.sha256(failure.data).hexdigest()[:12]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(failure.data)
    return path


def _replay(paths: Sequence[Path]) -> int:
    """Run single inputs, each in its own process; return the number of failures."""
    failed = 0
    for path in paths:
        target, data = TARGETS[path.resolve().parent.name], path.read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            child = _start_child(log)
            if not child:
                tempfile.tempdir = folder
                _exit_after(lambda: check(target, data, Path(folder) / target.name))  # noqa: B023 - called at once
            _, status = os.waitpid(child, 0)
            print(f"{path}: {'passes' if status == 0 else 'fails'}\n{log.read_text(errors='replace')}")
            failed += status != 0
    return failed


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", nargs="*", type=Path, help="inputs to replay instead")
    parser.add_argument("--seconds", type=float, default=60.0, help="time for all targets; 0: only the kept seeds")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="number from which the inputs are made")
    parser.add_argument("--only", nargs="+", choices=sorted(TARGETS), metavar="TARGET", help="run these targets only")
    options = parser.parse_args()
    if options.inputs:
        return 1 if _replay(options.inputs) else 0
    targets = [TARGETS[name] for name in options.only or TARGETS]
    print(f"{len(targets)} targets, {options.seconds:g} s, --seed {options.seed}", flush=True)
    counts: dict[str, int] = {}
    failures = []
    for failure in fuzz(targets, options.seconds, options.seed, counts):
        failures.append(failure)
        path = _save(failure)
        print(f"\n{failure.log}\nFAILED {failure.target}, input {failure.number}: {failure.signature}")
        print(
            f"replay: {sys.executable} {sys.argv[0]} {path}",
            flush=True,
        )
    for name, count in counts.items():
        print(f"{name:24} {count:8,} inputs")
    print(f"{sum(counts.values()):,} inputs, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
