"""The manifest: the only proof that a stage finished, with a checksum of each of its files.

It records the stage, its version and config and the fingerprints of its inputs, and for each task the records in, out
and dropped with reasons, and the checksum of each file. It contains no time, path or number of workers, so that equal
results have equal manifests.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Protocol

import msgspec

from pipelines import storage
from pipelines.engine.config import spec_of
from pipelines.engine.folder_lock import folder_lock
from pipelines.errors import DamagedShardError, InputError, WebtextError, translate_format_errors

MANIFEST_FILE = "manifest.json"
FORMAT_VERSION = 1

# A result that replaces a finished one is built in this folder inside it, and moved when it is complete.
NEXT = "_next"
# Written there before the new manifest: the names that belong to the old result.
_REPLACED = ".replaced.json"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


@dataclasses.dataclass(frozen=True)
class FileEntry:
    """One file of a shard: its name in the folder, size and SHA-256 (of a work file: see `checksum_of`)."""

    name: str
    size_bytes: Count
    sha256: str

    def __post_init__(self) -> None:
        """Raise ValueError for a name that leads out of the folder."""
        _check_inside(self.name)


@dataclasses.dataclass(frozen=True)
class ShardEntry:
    """The result of one task: the manifest's entry for a shard.

    `work` marks a task whose files only serve a later phase; they are removed when the stage is done.
    """

    phase: str
    name: str
    records_in: Count = 0
    records_out: Count = 0
    dropped: Mapping[str, Count] = dataclasses.field(default_factory=dict)
    # Not float alone, as which an integer would be read.
    counts: Mapping[str, int | float] = dataclasses.field(default_factory=dict)
    files: tuple[FileEntry, ...] = ()
    work: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        # Not `asdict`, whose copies took most of the time of writing a manifest.
        return vars(self) | {"files": [vars(file) for file in self.files]}


@dataclasses.dataclass(frozen=True)
class Identity:
    """What determines a result: the stage, its version, its config and its inputs (name -> fingerprint)."""

    stage: str
    version: int
    config: Mapping[str, Any]
    inputs: Mapping[str, str]

    def with_current_options(self, config: Any) -> Identity:
        """Return this recorded identity with the defaults of newer options of a config, or of a type of configs."""
        defaults = {
            field.name: list(field.default) if isinstance(field.default, tuple) else field.default
            for field in dataclasses.fields(config)
            if spec_of(field).identity and field.default is not dataclasses.MISSING
        }
        # Without options that no longer exist and were off, or had what is now the only value.
        former = getattr(config, "former_options", ())
        recorded = {
            name: value
            for name, value in self.config.items()
            if hasattr(config, name) or (value and (name, value) not in former)
        }
        return dataclasses.replace(self, config={**defaults, **recorded})

    def without_inputs(self, names: Collection[str]) -> Identity:
        """Return this identity without some of its inputs."""
        return dataclasses.replace(self, inputs={name: self.inputs[name] for name in self.inputs if name not in names})

    def differences(self, other: Identity) -> list[str]:
        """Describe how this recorded identity differs from the requested one."""
        if self.stage != other.stage:
            return [f"it was built by {self.stage}"]
        differences = []
        if self.version != other.version:
            differences.append(f"it was built by version {self.version} of the stage, this is version {other.version}")
        keys = {key for key in {*self.config, *other.config} if self.config.get(key) != other.config.get(key)}
        for key in sorted(keys):
            was = _short(self.config[key]) if key in self.config else "not recorded"
            differences.append(f"{key} was {was}, is now {_short(other.config.get(key))}")
        for name in sorted(self.changed_inputs(other) - keys):  # the input `extractor` is the version of that option
            change = "has changed" if name in other.inputs else "was removed"
            differences.append(f"its input '{name}' {change if name in self.inputs else 'is new'}")
        return differences

    def changed_inputs(self, other: Identity) -> set[str]:
        """Return the names of inputs that are not the same in another identity."""
        names = {*self.inputs, *other.inputs}
        return {name for name in names if self.inputs.get(name) != other.inputs.get(name)}

    def differs_in_inputs_only(self, other: Identity) -> bool:
        """Return whether stage, version and config are the same as those of another identity."""
        return dataclasses.replace(self, inputs=other.inputs) == other


@dataclasses.dataclass(frozen=True)
class Manifest:
    """The finished folder of a stage; `text_format` is that of the texts which it was made from, None if unknown."""

    identity: Identity
    shards: tuple[ShardEntry, ...]
    text_format: str | None = None

    @property
    def final_shards(self) -> list[ShardEntry]:
        """The shards that are the stage's result."""
        return [shard for shard in self.shards if not shard.work]

    @property
    def files(self) -> list[FileEntry]:
        """All files that the manifest lists."""
        return [file for shard in self.final_shards for file in shard.files]

    @property
    def size_bytes(self) -> int:
        """The size of all files."""
        return sum(file.size_bytes for file in self.files)

    @property
    def records_in(self) -> int:
        """Records read."""
        return sum(shard.records_in for shard in self.shards)

    @property
    def records_out(self) -> int:
        """Records written."""
        return sum(shard.records_out for shard in self.shards)

    @property
    def dropped(self) -> dict[str, int]:
        """Drops by reason, most frequent first."""
        totals: Counter[str] = Counter()
        for shard in self.shards:
            totals.update(shard.dropped)
        return dict(sorted(totals.items(), key=lambda item: (-item[1], item[0])))

    @property
    def counts(self) -> dict[str, float]:
        """Further counts of the tasks, summed."""
        totals: Counter[str] = Counter()
        for shard in self.shards:
            totals.update(shard.counts)
        return dict(sorted(totals.items()))

    def check_records(self, examples: str = "") -> None:
        """Raise InputError if there were no records, and WebtextError if all were dropped or one was lost."""
        name, records_in, records_out = self.identity.stage, self.records_in, self.records_out
        dropped = sum(self.dropped.values())
        if lost := records_in - records_out - dropped:
            raise WebtextError(
                f"{name}: {records_in:,} records in, {records_out:,} out and {dropped:,} dropped, so {lost:,} are "
                "unaccounted for; this is a bug in webtext, please report it"
            )
        if records_in == 0:
            raise InputError(f"{name}: the input contains no records; check the input paths or the previous stage")
        if records_out == 0:
            reasons = ", ".join(f"{reason} {count:,}" for reason, count in list(self.dropped.items())[:5])
            noun = {"scrape": "links", "fetch": "pages"}.get(name, "documents")
            all_records = "the only record was" if records_in == 1 else f"all {records_in:,} records were"
            raise WebtextError(
                f"{name}: no {noun} left: {all_records} dropped ({reasons}){examples}; relax the options, or retry if "
                "the cause was temporary"
            )

    def fingerprint(self) -> str:
        """Return a hash of the identity of the folder and of every byte in it."""
        return hashlib.sha256(json.dumps(self.to_json(), sort_keys=True).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """Return the manifest as JSON values."""
        return {
            "format": FORMAT_VERSION,
            **dataclasses.asdict(self.identity),
            # Absent, not null: the fingerprints of older results do not have it.
            **({"text_format": self.text_format} if self.text_format else {}),
            "records_in": self.records_in,
            "records_out": self.records_out,
            "dropped": self.dropped,
            "counts": self.counts,
            "shards": [shard.to_json() for shard in self.shards],
        }


def has_manifest(folder: str) -> bool:
    """Return whether a folder contains a finished stage."""
    _complete_interrupted_replacement(folder)
    return storage.exists(storage.join(folder, MANIFEST_FILE))


def read_manifest(folder: str) -> Manifest:
    """Read the manifest of a folder; raise InputError if it is absent or not a manifest of webtext."""
    _complete_interrupted_replacement(folder)
    path = storage.join(folder, MANIFEST_FILE)
    remedy = f"its shards cannot be verified: move {folder} away and re-run the stage"
    try:
        value = storage.read_json(path)
    except InputError as error:
        raise InputError(f"{error}; {remedy}") from error
    with translate_format_errors(path, f"a manifest of webtext; {remedy}"):
        if value["format"] != FORMAT_VERSION:
            raise InputError(f"{path}: has format {value['format']}, this version reads {FORMAT_VERSION}")
        identity = msgspec.convert(value, Identity)
        shards = msgspec.convert(value["shards"], tuple[ShardEntry, ...])
        return Manifest(identity, shards, msgspec.convert(value.get("text_format"), str | None))


class TextFile(Protocol):
    """A file of texts; `stage` is the stage that wrote it, if it was read as a part of its result."""

    @property
    def path(self) -> str: ...  # noqa: D102
    @property
    def stage(self) -> str | None: ...  # noqa: D102


def common_text_format(files: Iterable[TextFile]) -> str | None:
    """Return the format that the manifests next to files record, None if none does; raise InputError if several do.

    Older results of extract, which do not record it, are plain text.
    """
    of_stage = (file.path for file in files if file.stage or storage.basename(file.path).startswith("documents-"))
    folders = dict[str, str]()
    for folder in dict.fromkeys(map(storage.parent, of_stage)):
        with contextlib.suppress(InputError):  # no manifest, or one of another program
            manifest = read_manifest(folder)
            name = manifest.text_format or ("text" if manifest.identity.stage == "extract" else "")
            folders.setdefault(name, folder)
    folders.pop("", None)
    if len(folders) > 1:
        (first, one), (second, other) = [*folders.items()][:2]
        problem = f"its texts are {first}, those of {other} are {second}"
        raise InputError(f"{one}: {problem}; extract both with the same --format of `webtext extract`")
    return next(iter(folders), None)


def read_entry(path: str) -> ShardEntry:
    """Read the entry of a finished task from a file of a journal; raise InputError if it is not one."""
    with translate_format_errors(path, "the entry of a finished task; delete this file to run the task again"):
        return msgspec.convert(storage.read_json(path), ShardEntry)


def write_manifest(folder: str, manifest: Manifest) -> None:
    """Write the manifest of a folder."""
    storage.write_json(storage.join(folder, MANIFEST_FILE), manifest.to_json())


def replace_result(folder: str, old_names: Iterable[str], manifest: Manifest) -> None:
    """Write the manifest of the complete result in `NEXT`, and move it over the old one, which has `old_names`.

    Once the manifest is there, the new result counts: after a kill, the next command that reads the folder completes
    the move. The caller holds the lock.
    """
    source = storage.join(folder, NEXT)
    storage.write_json(storage.join(source, _REPLACED), sorted(old_names))
    write_manifest(source, manifest)
    complete_replacement(folder)


def _check_inside(name: str) -> None:
    """Raise ValueError for the name of a file that is not in its folder: a folder from elsewhere may name any file."""
    if not name or name.startswith("/") or {".", ".."} & {*name.split("/")}:
        raise ValueError(f"{name[:100]!r} is not in the folder")


def complete_replacement(folder: str) -> None:
    """Move a complete new result over the old one, if there is one; the caller holds the lock.

    Raises InputError, before anything is removed, if webtext did not write what is there: a folder may come from
    elsewhere.
    """
    source = storage.join(folder, NEXT)
    replaced = storage.join(source, _REPLACED)
    if not storage.exists(storage.join(source, MANIFEST_FILE)):
        return
    read_manifest(source)
    if storage.is_local(folder) and storage.real_path(source) != storage.join(storage.real_path(folder), NEXT):
        raise InputError(f"{source}: is a link to another folder; remove it")
    if storage.exists(replaced):
        with translate_format_errors(replaced, f"a list of replaced files; delete {source}"):
            names = msgspec.convert(storage.read_json(replaced), list[str])
            for name in names:
                _check_inside(name)
                if "/" in name:
                    raise ValueError(f"{name[:100]!r} is not the name of a file")
        for name in names:
            storage.remove(storage.join(folder, name))
        storage.remove(replaced)
    for name in storage.list_folder(source):
        if name[0] in "._":  # the journal and work files
            storage.remove(storage.join(source, name))
        elif name != MANIFEST_FILE:
            storage.move(storage.join(source, name), storage.join(folder, name))
    storage.move(storage.join(source, MANIFEST_FILE), storage.join(folder, MANIFEST_FILE))
    storage.remove(source)


def _complete_interrupted_replacement(folder: str) -> None:
    if storage.exists(storage.join(folder, NEXT, MANIFEST_FILE)):
        with folder_lock(folder):
            complete_replacement(folder)


def check_file(folder: str, file: FileEntry) -> str | None:
    """Return the problem with a file of a folder, or None if it matches its checksum."""
    path = storage.join(folder, file.name)
    if not storage.exists(path):
        return f"{path}: is missing"
    size = storage.size_bytes(path)
    if size != file.size_bytes:
        return f"{path}: is damaged ({size:,} bytes, expected {file.size_bytes:,})"
    if storage.checksum_of(path, file.sha256) != file.sha256:
        return f"{path}: is damaged (its checksum does not match the manifest)"
    return None


def check_entries(folder: str, entries: Sequence[ShardEntry]) -> list[str | None]:
    """Return for each entry the first problem of its files, None if all are intact."""

    def problem(entry: ShardEntry) -> str | None:
        return next(filter(None, (check_file(folder, file) for file in entry.files)), None)

    return storage.map_files(problem, entries, folder=folder, local_threads=storage.HASHING_THREADS)


def require_files(folder: str, files: Iterable[FileEntry], stage: str) -> None:
    """Raise DamagedShardError, naming the file, for one that does not match the manifest."""
    for file in files:
        if problem := check_file(folder, file):
            raise DamagedShardError(f"{problem}; re-run `webtext {stage}` to rebuild it")


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."
