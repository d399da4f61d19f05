"""How much each stage reads and writes: of WebText, of documents, or extrapolated from a corpus that is a sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pydoc_data.topics import topics

from pipelines import storage
from pipelines.build import CorpusConfig
from pipelines.engine.manifest import Manifest, has_manifest, read_manifest
from pipelines.errors import InputError
from pipelines.records import inputs
from pipelines.records.estimate import DocumentsEstimate, estimate_documents
from pipelines.stages.scrape.config import ScrapeConfig


@dataclasses.dataclass(frozen=True)
class Workload:
    """The amounts that the stages read: submissions, links, pages that answered, documents and bytes of their text.

    `filtered_documents` and `filtered_bytes` are those that filter keeps, `unique_documents` and `unique_bytes` those
    that dedup and remove-wikipedia keep of them. `page_bytes` is the size of a page in a WARC file, `shards` the number
    of tasks of a stage, `sample` some texts. `basis` says where it is from. The corpus does without `skipped` stages.
    """

    submissions: float
    links: float
    pages: float
    page_bytes: float
    documents: float
    text_bytes: float
    filtered_documents: float
    filtered_bytes: float
    unique_documents: float
    unique_bytes: float
    shards: int
    basis: str
    sample: DocumentsEstimate
    skipped: tuple[str, ...] = ()

    def scaled(self, links: float | None) -> Workload:
        """Return the workload of another number of links, or this one without a number."""
        if links is None:
            return self
        if not self.links:
            raise InputError(f"--links: {self.basis} contain no links; name a corpus with --corpus instead")
        documents = ("documents", "filtered_documents", "unique_documents")
        amounts = ("submissions", "links", "pages", *documents, "text_bytes", "filtered_bytes", "unique_bytes")
        factor = links / self.links
        scaled = {name: getattr(self, name) * factor for name in amounts}
        return dataclasses.replace(self, **scaled, basis=f"{self.basis}, scaled to {links:,.0f} links")


def webtext() -> Workload:
    """Return the workload of WebText, with texts of Python's reference for its sample."""
    texts = tuple(topics.values())
    size = sum(len(text.encode()) for text in texts)
    return dataclasses.replace(_WEBTEXT, sample=dataclasses.replace(_NO_SAMPLE, sample=texts, sample_bytes=size))


_NO_SAMPLE = DocumentsEstimate(text_bytes=0, documents=0, shards=0, is_exact=False, sample=(), sample_bytes=0)
# Submissions: the dumps through 2017-12. Links, documents and bytes kept: the paper, sections 2.1. It does not say how
# many links answered, what was filtered, or what was duplicate: so all answer, with a document as large as those that
# were kept, and dedup reads all of them. Bytes per page: benchmarks/pipeline.md.
_WEBTEXT = Workload(
    submissions=430.6e6,
    links=45e6,
    pages=45e6,
    page_bytes=47_000,
    documents=45e6,
    text_bytes=225e9,
    filtered_documents=45e6,
    filtered_bytes=225e9,
    unique_documents=8e6,
    unique_bytes=40e9,
    shards=ScrapeConfig().shards,
    basis="WebText's own numbers, as if every link answered",
    sample=_NO_SAMPLE,
)


def of_documents(paths: Sequence[str]) -> Workload:
    """Return the workload of documents that are there; all of them are assumed to be kept."""
    estimate = estimate_documents(inputs.open_documents(list(paths)))
    documents, size = float(estimate.documents), float(estimate.text_bytes)
    if not size:
        raise InputError(f"{', '.join(paths)}: no text to extrapolate from")
    amounts = (documents, size) * 3
    return Workload(0, 0, 0, 0, *amounts, estimate.shards, "the documents of --input", estimate)


def of_corpus(corpus: str) -> Workload:
    """Return the workload of a corpus with texts of its own, or whose stages down to extract are finished.

    What later stages keep is taken from those that are finished; without any, everything is kept.
    """
    config = CorpusConfig(corpus)
    skipped = config.skipped()
    own = [path for stage in ("filter", "dedup") if stage not in skipped for path in config.own_input(stage)]
    work = of_documents(own) if own else _of_pages(corpus)
    shares = {}
    for stage in ("filter", "dedup", "remove-wikipedia"):
        manifest = None if stage in skipped else _manifest(corpus, stage)
        shares[stage] = manifest.records_out / max(1, manifest.records_in) if manifest else 1.0
    filtered = shares["filter"]
    unique = filtered * shares["dedup"] * shares["remove-wikipedia"]
    return dataclasses.replace(
        work,
        filtered_documents=filtered * work.documents,
        filtered_bytes=filtered * work.text_bytes,
        unique_documents=unique * work.documents,
        unique_bytes=unique * work.text_bytes,
        basis=f"the corpus {corpus}",
        skipped=tuple(skipped),
    )


def _of_pages(corpus: str) -> Workload:
    """Return the workload of a corpus whose stages down to extract are finished, as if all documents were kept."""
    scrape, fetch, extract = (_manifest(corpus, stage) for stage in ("scrape", "fetch", "extract"))
    if not (scrape and fetch and extract):
        raise InputError(
            f"{corpus}: scrape, fetch and extract are not finished; run `webtext build --to extract` first"
        )
    estimate = estimate_documents(inputs.open_documents([storage.join(corpus, "extract")]))
    warc_bytes = sum(file.size_bytes for file in fetch.files if ".warc" in file.name)
    amounts = (float(extract.records_out), float(estimate.text_bytes)) * 3
    return Workload(
        submissions=scrape.records_in,
        links=scrape.records_out,
        pages=fetch.records_out,
        page_bytes=warc_bytes / max(1, fetch.records_out),
        documents=amounts[0],
        text_bytes=amounts[1],
        filtered_documents=amounts[0],
        filtered_bytes=amounts[1],
        unique_documents=amounts[0],
        unique_bytes=amounts[1],
        shards=len(extract.final_shards),
        basis="",
        sample=estimate,
    )


def _manifest(corpus: str, stage: str) -> Manifest | None:
    folder = storage.join(corpus, stage)
    return read_manifest(folder) if has_manifest(folder) else None
