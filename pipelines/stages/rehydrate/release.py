"""The folder that `webtext release` writes, as far as it is needed to rebuild the corpus."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from pipelines import storage
from pipelines.engine.config import Config, make_config
from pipelines.errors import InputError, translate_format_errors

RELEASE_FILE, CHECKSUMS = "release.json", "SHA256SUMS"
_FORMAT = 1
_URLS = re.compile(r"urls/urls-\d+\.parquet")


class RecordedStage(msgspec.Struct, frozen=True):
    """What a release records of a stage of its corpus."""

    version: int
    config: dict[str, Any] = {}
    inputs: dict[str, str] = {}


class _Description(msgspec.Struct, frozen=True):
    format: int
    stages: dict[str, RecordedStage]


class Release(NamedTuple):
    """A release: its description, the paths of its tables of URLs, and a hash of all of them."""

    path: str
    stages: Mapping[str, RecordedStage]
    urls: list[str]
    fingerprint: str

    def options(
        self, stage: str, config_type: type[Config], only: tuple[str, ...] = (), flags: Mapping[str, Any] | None = None
    ) -> Config:
        """Return the recorded options of a stage (`only` some of them), overridden by flags; else the defaults.

        Raises UsageError for options that this version does not have, or with wrong values.
        """
        recorded = self.stages[stage].config if stage in self.stages else {}
        table = {name: value for name, value in recorded.items() if not only or name in only}
        return make_config(config_type, table, flags or {}, lambda _: f"{self.path} [{stage}]")


def open_release(folder: str) -> Release:
    """Open a release and verify the checksums of what is read; raise InputError if it is none, or damaged."""
    path, sums_path = storage.join(folder, RELEASE_FILE), storage.join(folder, CHECKSUMS)
    for file in (path, sums_path):
        if not storage.exists(file):
            problem = f"has no {storage.basename(file)}, so it is not a release" if storage.is_folder(folder) else ""
            raise InputError(f"{folder}: {problem or 'no such folder'}; name a folder that `webtext release` wrote")
    with translate_format_errors(sums_path, "a list of checksums; download the release again"):
        lines = storage.read_bytes(sums_path).decode().splitlines()
        sums = {name: checksum for checksum, name in (line.split(maxsplit=1) for line in lines)}
    names = [RELEASE_FILE, *sorted(filter(_URLS.fullmatch, sums))]
    paths = [storage.join(folder, name) for name in names]
    checksums = storage.map_files(storage.sha256_of, paths, local_threads=storage.HASHING_THREADS)
    for name, file, checksum in zip(names, paths, checksums, strict=True):
        if sums.get(name) != checksum:
            raise InputError(f"{file}: its checksum does not match {CHECKSUMS}; download the release again")
    if not paths[1:]:
        raise InputError(f"{sums_path}: lists no urls/urls-NNNNN.parquet; a release without URLs cannot be rehydrated")
    with translate_format_errors(path, "the description of a release; download it again"):
        description = msgspec.convert(storage.read_json(path), _Description)
    if description.format != _FORMAT:
        raise InputError(f"{path}: has format {description.format}, this version reads {_FORMAT}; update webtext")
    return Release(path, description.stages, paths[1:], hashlib.sha256("".join(checksums).encode()).hexdigest())
