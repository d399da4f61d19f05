"""The model: its loss curves, samples, and its answers in evaluations next to the documents in which it saw them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipelines import storage
from pipelines.browse.site import number_of, site_of
from pipelines.corpus.tables import CorpusTables, parquet_files
from pipelines.corpus_config import CorpusConfig
from pipelines.errors import InputError, UsageError
from pipelines.evaluation.records import read_records
from pipelines.evaluation.results_page import EXAMPLES, RESULTS, main_folder
from pipelines.format import to_json
from pipelines.records import shards
from pipelines.reports.evaluation import format_figure, metric_title, result_label
from pipelines.reports.training import training_figures

_ROWS, _SAMPLES = 20, 20
# The columns of examples that say whether an answer is right.
_IS_RIGHT = ("accuracy", "exact_match", "recited")
# The place or the cluster of an example that was made from a document of the corpus.
_DOCUMENT = re.compile(r"(train|held-out):(.+)", re.DOTALL)


class _Figure(TypedDict):
    name: str
    unit: str
    value: float
    low: float | None
    high: float | None
    examples: int
    columns: list[str]


class _Result(TypedDict):
    task: str
    title: str
    variant: str
    limit: int | None
    shots: int
    shot_seed: int
    metrics: list[_Figure]
    files: list[dict[str, str | None]]


class _Results(TypedDict):
    tasks: dict[str, _Result]


def show_model(request: Request) -> Response:
    """Show the training, finished or not, and the evaluation of the model, or its answers in a task."""
    site, task = site_of(request), request.query_params.get("task")
    if site.corpus is None:
        raise InputError("only a corpus has a model; start `webtext browse` with --corpus")
    evaluated, folder = (storage.join(site.corpus, name) for name in ("evaluate", "pretrain"))
    results = _read_results(storage.join(evaluated, RESULTS))
    if task and task not in results:
        raise UsageError(f"{task}: no results of this task; there are those of {', '.join(results) or 'no task'}")
    if task:
        return show_answers(request, site.corpus, storage.join(main_folder(evaluated), task), results[task])
    files = [storage.join(folder, f"{name}.jsonl") for name in ("metrics", "timing", "samples")]
    rows, timing, samples = (
        [line.fields for line in read_records([path] if storage.is_file(path) else [])] for path in files
    )
    training: dict[str, Any] | None = None
    if rows:
        training = storage.read_json(storage.join(folder, "config.json"))
        spikes = [row["spike"] for row in rows if "spike" in row]
        training["tiles"], training["charts"] = training_figures(rows, timing, training["recipe"], spikes)
    texts: Any = {text.__name__: text for text in (result_label, metric_title, format_figure)}
    return site.render(
        request, "model.html", training=training, results=results, samples=samples[::-1][:_SAMPLES], **texts
    )


def _read_results(path: str) -> dict[str, _Result]:
    try:
        return msgspec.convert(storage.read_json(path), _Results)["tasks"] if storage.is_file(path) else {}
    except msgspec.ValidationError as error:
        problem = f"{path}: is not the results of an evaluation ({error})"
        raise InputError(f"{problem}; re-run `webtext evaluate` to rebuild it") from error


def show_answers(request: Request, corpus: str, folder: str, result: _Result) -> Response:
    """Show a page of the answers in a task, all of them, or those that are right or wrong."""
    site, start, right = site_of(request), number_of(request, "offset") or 0, request.query_params.get("right", "")
    if right not in ("", "yes", "no"):
        raise UsageError(f"right={right}: is neither yes nor no")
    columns = [name for figure in result["metrics"] for name in figure["columns"] if name in _IS_RIGHT][:1]
    rows = list(shards.read_rows(storage.join(folder, EXAMPLES), ["place", "cluster", "gold", "output", *columns]))
    for row in rows:
        row["right"] = "" if not columns else "yes" if row[columns[0]] else "no"
    answers = [row for row in rows if right in ("", row["right"])]
    page = answers[start : start + _ROWS]
    places = [row["place"] for row in page]
    questions = read_questions(corpus, result, places)
    with site.tables(request) as tables:
        sources = find_sources(tables, places)
    for row in page:
        fields = {name: value for name, value in questions.get(row["place"], {}).items() if value != row["cluster"]}
        row["fields"] = {name: value if isinstance(value, str) else to_json(value) for name, value in fields.items()}
        row["text"] = " ".join(value for value in fields.values() if isinstance(value, str))
        row["made_from"] = _DOCUMENT.fullmatch(row["place"]) or _DOCUMENT.fullmatch(row["cluster"])
        row["source"] = sources.get(row["place"])
    state: dict[str, Any] = {"answers": page, "matches": len(answers), "start": start, "rows": _ROWS, "right": right}
    counts = {"": len(rows), **Counter(row["right"] for row in rows)} if columns else {}
    return site.render(request, "answers.html", result=result, label=result_label(result), counts=counts, **state)


def find_sources(tables: CorpusTables, places: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return by the place of an example the document that has most of its n-grams, as overlap-report found them."""
    if not places or not (report := tables.stages.get("overlap-report")):
        return {}
    query = (
        "SELECT place, benchmark, document_id AS id, any_value(url) AS url, count(*) AS ngrams "
        f"FROM {parquet_files([report.file('hits.parquet').path])} WHERE place IN ({', '.join('?' * len(places))}) "
        "AND id IS NOT NULL GROUP BY ALL ORDER BY ngrams, id"
    )
    return {row["place"]: row for row in tables.rows(query, places)}  # the last of a place


def read_questions(corpus: str, result: _Result, places: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return the records of examples by their places, if the corpus has the file that was evaluated.

    It is one that `webtext.toml` names for overlap-report, or in the folder `benchmarks`, with the same SHA-256.
    """
    paths = [path for path in CorpusConfig(corpus).files("overlap-report").values() if path]
    data = [file for file in result["files"] if file.get("role") == "data"]
    name, sha256 = (data[0].get("path"), data[0].get("sha256")) if len(data) == 1 else (None, None)
    for path in [*paths, storage.join(corpus, "benchmarks", name)] if name else ():
        if storage.basename(path) == name and storage.is_file(path) and storage.sha256_of(path) == sha256:
            return {record.place: record.fields for record in read_records([path]) if record.place in places}
    return {}


NAVIGATION = (("/model", "Model"),)
ROUTES = (Route("/model", show_model),)
