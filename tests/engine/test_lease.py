"""The lock of a folder in an object store: one holder, also after kills, pauses and lost answers."""

from __future__ import annotations

import datetime as dt
import signal
import subprocess
import sys
import textwrap
import threading
import time
from typing import Any

import obstore
import pytest

from pipelines import storage
from pipelines.engine import lease
from pipelines.engine.folder_lock import folder_lock, writer_of
from pipelines.errors import LockedError, StorageError
from pipelines.storage import object_store
from pipelines.storage.object_store import ObjectStore

pytestmark = pytest.mark.usefixtures("short_lease")


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second instead of a minute."""
    monkeypatch.setattr(lease, "SECONDS", 1.0)


def test_a_second_holder_is_refused_and_the_lock_is_removed_at_the_end(bucket: str) -> None:
    with folder_lock(bucket) as lock:
        time.sleep(1.5)  # it is renewed
        start, notes = time.monotonic(), list[str]()
        with (
            pytest.raises(LockedError, match=r"^s3://.*: is being written by process \d+ on .*, since .*; wait"),
            folder_lock(bucket, notes.append),
        ):
            pass
        assert [note.partition(" to see whether process ")[0] for note in notes] == [f"{bucket}: waiting up to 1 s"]
        assert time.monotonic() - start < 1
        lock.check(now=True)
        assert "process" in str(writer_of(bucket))
    assert storage.list_folder(bucket) == []
    assert writer_of(bucket) is None


_HOLDER = """
    import sys
    from pipelines.engine import lease
    from pipelines.errors import LockedError
    from pipelines.engine.folder_lock import folder_lock

    lease.SECONDS = 1.0
    with folder_lock(sys.argv[1]) as lock:
        print("locked", flush=True)
        input()
        try:
            lock.check()
            print("writes", flush=True)
        except LockedError as error:
            print(error, flush=True)
"""


@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "paused"])
def test_the_lock_of_a_dead_or_paused_process_is_taken_once(bucket: str, with_signal: signal.Signals) -> None:
    command = [sys.executable, "-c", textwrap.dedent(_HOLDER), bucket]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == "locked\n"
        holder.send_signal(with_signal)
        taken: list[str] = []
        contenders = [threading.Thread(target=_take, args=(bucket, taken)) for _ in range(4)]
        for contender in contenders:
            contender.start()
        for contender in contenders:
            contender.join()
        assert sorted(taken) == ["refused", "refused", "refused", "written"]
        if with_signal == signal.SIGSTOP:
            with folder_lock(bucket):
                holder.send_signal(signal.SIGCONT)
                holder.stdin.write("\n")
                holder.stdin.flush()
                assert "is being written by" in holder.stdout.readline()
                assert holder.wait() == 0
                assert storage.list_folder(bucket) == [".lock"]  # it did not remove another's


def _take(folder: str, taken: list[str]) -> None:
    try:
        with folder_lock(folder) as lock:
            time.sleep(2.5)  # longer than the others wait
            lock.check(now=True)
            taken.append("written")
    except LockedError:
        taken.append("refused")


def test_a_lost_answer_is_not_a_lost_lock(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put_if = ObjectStore.put_if

    def lose(store: ObjectStore, path: str, content: bytes, condition: Any) -> str | None:
        put_if(store, path, content, condition)
        return put_if(store, path, content, condition)  # what a repeated request gets

    monkeypatch.setattr(ObjectStore, "put_if", lose)
    with folder_lock(bucket) as lock:
        lock.check(now=True)
        monkeypatch.setattr(ObjectStore, "put_if", put_if)
        lock.check(now=True)


def test_a_store_that_does_not_answer_ends_the_lock_only_after_its_lease(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_arguments: Any) -> str:
        raise OSError("503 Slow Down")

    with folder_lock(bucket) as lock:
        with monkeypatch.context() as patch:
            patch.setattr(ObjectStore, "put_if", fail)
            time.sleep(0.6)
            lock.check()
            time.sleep(0.8)
            with pytest.raises(StorageError, match="cannot lock: 503"):
                lock.check()
        lock.check()


def test_an_upload_that_is_repeated_asks_for_the_lock_again(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put = obstore.put
    with folder_lock(bucket):
        token, _ = object_store.leases[f"{bucket}/.lock".partition("://")[2]]
        monkeypatch.setitem(object_store.leases, f"{bucket}/.lock".partition("://")[2], (token, 0.0))

        def take_the_lock_and_fail(*arguments: Any, **options: Any) -> None:
            monkeypatch.setattr(obstore, "put", put)
            put(arguments[0], ".lock", b'{"owner": "process 1 on another host", "token": "another"}')
            raise OSError("timeout")

        monkeypatch.setattr(obstore, "put", take_the_lock_and_fail)
        with pytest.raises(LockedError, match="process 1 on another host took over the lock"):
            storage.write_bytes(f"{bucket}/data", b"data")
    assert not storage.exists(f"{bucket}/data")


def test_a_lock_that_is_removed_while_it_is_looked_at_has_no_writer(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    modified_at = storage.modified_at

    def remove_afterwards(path: str) -> dt.datetime:
        modified = modified_at(path)
        storage.remove(path)
        return modified

    monkeypatch.setattr(storage, "modified_at", remove_afterwards)
    storage.write_bytes(f"{bucket}/.lock", b'{"owner": "process 1 on a host", "token": "token"}')
    assert writer_of(bucket) is None


def test_a_renewal_names_the_generation_by_which_google_cloud_storage_knows_the_lock(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = obstore.put
    modes: list[Any] = []

    def put_generation(*arguments: Any, mode: Any, **options: Any) -> Any:
        modes.append(mode)
        return {**put(*arguments, mode=mode, **options), "version": f"generation {len(modes)}"}

    monkeypatch.setattr(obstore, "put", put_generation)
    with folder_lock(bucket) as lock:
        lock.check(now=True)
    assert modes[0] == "create"
    assert [mode["version"] for mode in modes[1:]] == [f"generation {number}" for number in range(1, len(modes))]
