"""What all pages of the browser share: the tables of the corpus, the state in the URL, and the templates."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlencode

from anyio import from_thread
from starlette.requests import Request
from starlette.responses import HTMLResponse

from pipelines import storage
from pipelines.corpus.tables import CorpusTables
from pipelines.corpus_config import check_corpus
from pipelines.engine.manifest import MANIFEST_FILE
from pipelines.engine.run import RunOptions
from pipelines.errors import UsageError
from pipelines.format import name_corpus
from pipelines.pipeline import STAGE_FOLDERS
from pipelines.records.document_options import DocumentConfig
from pipelines.reports.render import render

# Half of what the whole server may use; DuckDB spills what does not fit.
_MEMORY_BYTES = 768 << 20
_QUERY_S = 20.0
# A build finishes stages while it is looked at.
_CHECK_S = 2.0


class Site:
    """The corpus that is browsed, or folders of stages or documents, and the pages of the navigation.

    `name` is shown; `corpus` is None unless a corpus folder is browsed, which has reports, labels and a search index.
    Raises InputError for a folder that is not a corpus, and what reading other inputs raises.
    """

    def __init__(self, source: str | Sequence[str], config: DocumentConfig, options: RunOptions) -> None:
        self.source = source
        self.corpus = source if isinstance(source, str) else None
        paths = [source] if isinstance(source, str) else source
        self.name = ", ".join(storage.basename(storage.absolute_path(path)) for path in paths)
        self.navigation: Sequence[tuple[str, str]] = ()
        self.can_search = self.corpus is not None and find_spec("tantivy") is not None
        self._config, self._options = config, options
        self._lock = threading.Lock()
        self._tables: CorpusTables | None = None
        # Changes when a stage is finished, rebuilt or removed from: a key for results to keep.
        self.version: tuple[Any, ...] = ()
        self._checked = 0.0
        if self.corpus is not None:
            check_corpus(self.corpus, "-i")  # no stage of it needs to be finished
        else:
            with self.tables():
                pass

    @contextlib.contextmanager
    def tables(self, request: Request | None = None) -> Iterator[CorpusTables]:
        """Give the tables of the finished stages to one request at a time, and end its queries after 20 seconds.

        Raises InputError if no stage has finished, UsageError if a query takes too long or its page was left.
        """
        with self._lock:
            # Those of the next page wait for it.
            if request and from_thread.run(request.is_disconnected):
                raise UsageError("the page was left before it was shown")
            if time.monotonic() - self._checked > _CHECK_S:
                version = self.read_version()
                if self._tables is None or version != self.version:
                    self._tables = None  # if the new ones cannot be opened
                    self._tables = CorpusTables(self.source, self._config, self._options, memory_bytes=_MEMORY_BYTES)
                self.version, self._checked = version, time.monotonic()
            assert self._tables is not None
            timer = threading.Timer(_QUERY_S, self._tables.interrupt)
            timer.start()
            try:
                yield self._tables
            except UsageError as error:
                if timer.is_alive():
                    raise
                raise UsageError(f"the query took more than {_QUERY_S:.0f} s; narrow it with a filter") from error
            finally:
                timer.cancel()

    def describe(self, error: Exception) -> str:
        """Return the message of an error, whose commands name the corpus."""
        return name_corpus(str(error), self.corpus) if self.corpus else str(error)

    def render(self, request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
        """Return the page of a template, which extends `browse/layout.html`."""
        state = {"site": self, "path": request.url.path, "query": request.query_params, "address": address}
        return HTMLResponse(render(f"browse/{template}", **state, **values), status)

    def read_version(self) -> tuple[Any, ...]:
        """Return the times of the manifests, and of other inputs."""
        folders = [storage.join(self.corpus, name) for name in STAGE_FOLDERS] if self.corpus else self.source
        files = [path for folder in folders for path in (storage.join(folder, MANIFEST_FILE), folder)]
        return tuple((path, storage.modified_at(path)) for path in files if storage.is_file(path))


def site_of(request: Request) -> Site:
    """Return the site that a request is for."""
    site: Site = request.app.state.site
    return site


def number_of(request: Request, name: str) -> int | None:
    """Return a whole number of the query, or None if it is not given; raise UsageError for anything else."""
    text = request.query_params.get(name)
    if text and not (text.isdecimal() and len(text) < 16):
        raise UsageError(f"{name}={text}: is not a whole number from 0 to {10**15:,}")
    return int(text) if text else None


def address(path: str, *states: Mapping[str, Any], **changes: Any) -> str:
    """Return the address of a page with a state in its query; later values replace earlier, None and "" remove one."""
    merged: dict[str, Any] = {}
    for state in (*states, changes):
        merged |= state
    query = urlencode({name: value for name, value in merged.items() if value not in (None, "")})
    return f"{path}?{query}" if query else path
