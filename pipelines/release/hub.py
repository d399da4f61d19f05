"""Uploads a release to a data set repository of the Hugging Face Hub: a commit and a tag per version."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib
from collections.abc import Iterator
from typing import Any

from pipelines import storage
from pipelines.errors import InputError
from pipelines.extras import require_extra
from pipelines.release.card import SUMS
from pipelines.release.sources import RELEASE

# Files of a release that a later one may lack.
_FOLDERS = ("data/*", "urls/*", "removed/*")
_KIND = "dataset"


@dataclasses.dataclass(frozen=True)
class Upload:
    """What an upload changes in a repository: paths of files that are new or changed, and of those that go."""

    repository: str
    version: str
    message: str
    exists: bool
    sent: tuple[str, ...]
    sent_bytes: int
    unchanged: int
    deleted: tuple[str, ...]


def plan_upload(folder: str, repository: str) -> Upload:
    """Compare a release with a repository, and send nothing.

    Raises InputError if the repository has other files under the tag of this version, or cannot be read.
    """
    require_extra("hub", "--push", "huggingface_hub")
    lines = storage.read_bytes(storage.join(folder, SUMS)).decode().splitlines()
    names = [*(line.partition("  ")[2] for line in lines), SUMS]
    release = storage.read_json(storage.join(folder, RELEASE))
    with _hub(repository) as api:
        remote: dict[str, Any] = {}
        tags: list[str] = []
        if exists := api.repo_exists(repository, repo_type=_KIND):
            tree = api.list_repo_tree(repository, repo_type=_KIND, recursive=True)
            remote = {file.path: file for file in tree if hasattr(file, "blob_id")}
            tags = [tag.name for tag in api.list_repo_refs(repository, repo_type=_KIND).tags]
    sent = tuple(name for name in names if not _is_equal(storage.join(folder, name), remote.get(name)))
    deleted = tuple(path for path in remote if path not in names and path.split("/")[0] + "/*" in _FOLDERS)
    if (sent or deleted) and f"v{release['version']}" in tags:
        raise InputError(
            f"{repository}: has another release {release['version']} ({(*sent, *deleted)[0]} differs); release into the "
            "folder with its history, so that the next version follows"
        )
    sent_bytes = sum(storage.size_bytes(storage.join(folder, name)) for name in sent)
    message = f"{release['version']}: {release['why']}"
    return Upload(
        repository, release["version"], message, exists, sent, sent_bytes, len(names) - len(sent), deleted
    )


def upload(folder: str, plan: Upload) -> str:
    """Upload a release as planned; return its address. After an interruption, sent files are not sent again.

    A new repository is private: its owner publishes it on the Hub. Raises InputError if the Hub refuses.
    """
    with _hub(plan.repository) as api:
        if not plan.exists:
            api.create_repo(plan.repository, repo_type=_KIND, private=True)
        if plan.sent or plan.deleted:
            api.upload_folder(
                repo_id=plan.repository,
                repo_type=_KIND,
                folder_path=storage.local_path(folder),
                commit_message=plan.message,
                allow_patterns=[*_FOLDERS, *(name for name in plan.sent if "/" not in name)],
                delete_patterns=list(plan.deleted),
            )
        api.create_tag(plan.repository, repo_type=_KIND, tag=f"v{plan.version}", tag_message=plan.message, exist_ok=True)
        return f"{api.endpoint}/datasets/{plan.repository}/tree/v{plan.version}"


@contextlib.contextmanager
def _hub(repository: str) -> Iterator[Any]:
    """Yield the client of the Hub; its errors name the repository."""
    import huggingface_hub

    # Their bases are OSError and the general error of the HTTP client that this version of the library uses.
    errors = importlib.import_module("huggingface_hub.errors").HfHubHTTPError.__bases__
    try:
        yield huggingface_hub.HfApi(library_name="webtext")
    except (ValueError, *errors) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise InputError(
            f"--push {repository}: {reason}; check the name, the network and the token (`hf auth login`), and re-run the "
            "same command to resume"
        ) from error


def _is_equal(path: str, remote: Any) -> bool:
    """Return whether a file is that of a repository: of a large one its SHA-256 is known, else Git's name for it."""
    if remote is None or remote.size != storage.size_bytes(path):
        return False
    if remote.lfs:
        return bool(remote.lfs.sha256 == storage.sha256_of(path))
    data = storage.read_bytes(path)
    return bool(remote.blob_id == hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest())
