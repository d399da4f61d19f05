"""Uploads a release to a data set repository of the Hugging Face Hub: a commit and a tag per version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipelines import storage
from pipelines.errors import InputError
from pipelines.extras import require_extra
from pipelines.format import format_bytes, plural
from pipelines.release.description import RELEASE, SUMS

# A later version may lack files of these.
_FOLDERS = ("data/", "urls/", "removed/")


def push(folder: str, repository: str, confirm: Callable[[str], bool]) -> str | None:
    """Upload a release if `confirm`, which is told what would be sent, returns True; return its address, else None.

    A new repository is private. What was sent before an interruption is not sent again. Raises InputError if the Hub
    refuses, or has other files of this version.
    """
    require_extra("hub", "--push", "huggingface_hub")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    # OSError and the general error of the HTTP client that this version of the library uses.
    errors: tuple[Any, ...] = HfHubHTTPError.__bases__
    api = HfApi(library_name="webtext")
    try:
        return _push(api, folder, repository, confirm)
    except (ValueError, RuntimeError, *errors) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        remedy = "check the name, the network and the token (`hf auth login`), and re-run the same command to resume"
        raise InputError(f"--push {repository}: {reason} ({api.endpoint}); {remedy}") from error


def _push(api: Any, folder: str, repository: str, confirm: Callable[[str], bool]) -> str | None:
    place: dict[str, Any] = {"repo_id": repository, "repo_type": "dataset"}
    release = storage.read_json(storage.join(folder, RELEASE))
    tag, message = f"v{release['version']}", f"{release['version']}: {release['why']}"
    lines = storage.read_bytes(storage.join(folder, SUMS)).decode().splitlines()
    checksums = {name: checksum for checksum, _, name in (line.partition("  ") for line in lines)}
    exists = api.repo_exists(**place)
    tree = api.list_repo_tree(**place, recursive=True) if exists else ()
    remote = {file.path: file.lfs.sha256 for file in tree if getattr(file, "lfs", None)}
    sent = [name for name, checksum in checksums.items() if remote.get(name) != checksum]
    deleted = [path for path in remote if path not in checksums and path.startswith(_FOLDERS)]
    tags = [ref.name for ref in api.list_repo_refs(**place).tags] if exists else []
    if tag in tags and (deleted or any("/" in name for name in sent)):
        raise InputError(f"{repository}: has another release {tag}; release into the folder that has its history")
    size = format_bytes(sum(storage.size_bytes(storage.join(folder, name)) for name in sent))
    plan = f"{plural(len(sent), 'file')} to upload ({size}), {len(checksums) - len(sent):,} unchanged"
    if not confirm(f"{repository}{'' if exists else ' (new, private)'}: {plan}, {len(deleted):,} to delete; {message}"):
        return None
    api.create_repo(**place, private=True, exist_ok=True)
    files = {"folder_path": storage.local_path(folder), "delete_patterns": deleted}
    api.upload_folder(**place, **files, ignore_patterns=["manifest.json", ".*", "_*"], commit_message=message)
    api.create_tag(**place, tag=tag, tag_message=message, exist_ok=True)
    return f"{api.endpoint}/datasets/{repository}/tree/{tag}"
