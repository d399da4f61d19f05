"""The model: its loss curves, samples, and its answers in evaluations next to the documents in which it saw them."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from pipelines import storage
from pipelines.browse.site import Site, number_of, site_of
from pipelines.build import CorpusConfig
from pipelines.corpus.tables import CorpusTables, parquet_files
from pipelines.errors import UsageError, translate_format_errors
from pipelines.evaluation.records import read_records
from pipelines.evaluation.results_page import EXAMPLES, RESULTS, main_folder
from pipelines.format import suggest_nearest, to_json
from pipelines.records import shards
from pipelines.reports.evaluation import format_figure, metric_title, result_label
from pipelines.reports.training import training_figures

_ROWS, _SAMPLES, _SOURCES = 20, 20, 3
_TRACED_CHARACTERS = 2000
# The columns of examples that say whether an answer is right.
_IS_RIGHT = ("accuracy", "exact_match", "recited")
# The place or the cluster of an example that was made from a document of the corpus.
_DOCUMENT = re.compile(r"(train|held-out):(.+)", re.DOTALL)


def show_model(request: Request) -> Response:
    """Show the training and the evaluation of the model, or its answers in a task."""
    site = site_of(request)
    evaluated = _folder(site, "evaluate", RESULTS)
    results = storage.read_json(storage.join(evaluated, RESULTS))["tasks"] if evaluated else {}
    if "task" in request.query_params:
        return show_answers(request, evaluated, results)
    trained = _folder(site, "pretrain", "metrics.jsonl")
    training = read_training(trained) if trained else None
    functions = {"result_label": result_label, "metric_title": metric_title, "format_figure": format_figure}
    return site.render(request, "model.html", training=training, results=results, **functions)


def read_training(folder: str) -> dict[str, Any]:
    """Return the recipe, figures, charts and latest samples of a training, finished or not."""
    config = storage.read_json(storage.join(folder, "config.json"))
    rows, timing, samples = (
        _read_lines(storage.join(folder, f"{name}.jsonl")) for name in ("metrics", "timing", "samples")
    )
    spikes = [row["spike"] for row in rows if "spike" in row]
    tiles, charts = training_figures(rows, timing, config["recipe"], spikes)
    latest = [
        {**sample, "traced": sample["text"][:_TRACED_CHARACTERS]}
        for sample in itertools.islice(reversed(samples), _SAMPLES)
    ]
    return {"config": config, "tiles": tiles, "charts": charts, "samples": latest, "sample_count": len(samples)}


def show_answers(request: Request, folder: str, results: Mapping[str, Any]) -> Response:
    """Show a page of the answers in a task, all of them, or those that are right or wrong."""
    site, task, start = site_of(request), request.query_params["task"], number_of(request, "after") or 0
    if task not in results:
        hint = suggest_nearest(task, results, f"the tasks are {', '.join(results) or 'none'}")
        raise UsageError(f"{task}: no results of this task; {hint}")
    result, right = results[task], request.query_params.get("right", "")
    if right not in ("", "yes", "no"):
        raise UsageError(f"right={right}: is neither yes nor no")
    columns = [name for figure in result["metrics"] for name in figure["columns"]]
    is_right = next((name for name in _IS_RIGHT if name in columns), None)
    shown = [is_right] if is_right else list(dict.fromkeys(result["metrics"][0]["columns"]))
    path = storage.join(main_folder(folder), task, EXAMPLES)
    answers = list(shards.read_rows(path, ["place", "cluster", "gold", "output", *shown]))
    counts = {"": len(answers)}
    if is_right:
        counts |= {"yes": 0, "no": 0} | Counter("yes" if row[is_right] else "no" for row in answers)
        answers = [row for row in answers if not right or bool(row[is_right]) == (right == "yes")]
    page = answers[start : start + _ROWS]
    places = [row["place"] for row in page]
    questions = read_questions(site, result, places)
    with site.tables() as tables:
        sources, has_audit = find_sources(tables, places), bool(_hits(tables))
    for row in page:
        record = questions.get(row["place"], {})
        fields = {name: value for name, value in record.items() if value not in (row["gold"], row["cluster"])}
        row["fields"] = {name: value if isinstance(value, str) else to_json(value) for name, value in fields.items()}
        texts = [value for value in record.values() if isinstance(value, str) and value != row["cluster"]]
        row["traced"] = " ".join(texts)[:_TRACED_CHARACTERS]
        row["made_from"] = next(filter(None, (_DOCUMENT.fullmatch(row[name]) for name in ("place", "cluster"))), None)
        row["sources"] = sources.get(row["place"], [])
        row["is_right"] = None if is_right is None else bool(row[is_right])
    return site.render(
        request,
        "answers.html",
        result=result,
        label=result_label(result),
        answers=page,
        columns=[] if is_right else shown,
        counts=counts,
        right=right,
        start=start,
        rows=_ROWS,
        matches=len(answers),
        has_audit=has_audit,
    )


def find_sources(tables: CorpusTables, places: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the documents with n-grams of examples, by the place of the example, those with most n-grams first.

    They are those that overlap-report found: of each n-gram, the first document with it.
    """
    if not (hits := _hits(tables)) or not places:
        return {}
    query = (
        "SELECT place, benchmark, document_id AS id, any_value(url) AS url, count(*) AS ngrams "
        f"FROM {parquet_files(hits)} WHERE place IN ({', '.join('?' * len(places))}) AND document_id IS NOT NULL "
        "GROUP BY ALL ORDER BY ngrams DESC, id"
    )
    sources: dict[str, list[dict[str, Any]]] = {}
    for row in tables.rows(query, places):
        sources.setdefault(row["place"], []).append(row)
    return {place: rows[:_SOURCES] for place, rows in sources.items()}


def read_questions(site: Site, result: Mapping[str, Any], places: Collection[str]) -> dict[str, Mapping[str, Any]]:
    """Return the records of examples by their places, if the corpus has the file that was evaluated.

    Files are those that `webtext.toml` names for overlap-report, and those in `benchmarks`; equal ones have the same
    SHA-256.
    """
    data = [file for file in result["files"] if file["role"] == "data"]
    if site.corpus is None or len(data) != 1:
        return {}
    [file] = data
    folder, name = storage.join(site.corpus, "benchmarks"), storage.basename(file["path"])
    paths = [path for path in CorpusConfig(site.corpus).files("overlap-report").values() if path]
    for path in [*paths, storage.join(folder, name)]:
        if storage.basename(path) == name and storage.is_file(path) and storage.sha256_of(path) == file["sha256"]:
            numbered = (
                (f"{file['path']}:{record.place.rpartition(':')[2]}", record.fields) for record in read_records([path])
            )
            return {place: fields for place, fields in numbered if place in places}
    return {}


def _hits(tables: CorpusTables) -> list[str]:
    folder = tables.stages.get("overlap-report")
    return [file.path for file in folder.files("hits.parquet")] if folder else []


def _folder(site: Site, name: str, file: str) -> str:
    """Return a folder of the corpus, or the folder of that stage which is browsed, if it has a file; else ""."""
    folders = (
        [storage.join(site.corpus, name)]
        if site.corpus
        else [path for path in site.source if storage.basename(path) == name]
    )
    return next((folder for folder in folders if storage.is_file(storage.join(folder, file))), "")


def _read_lines(path: str) -> list[dict[str, Any]]:
    if not storage.is_file(path):
        return []
    with translate_format_errors(path, "a list of JSON objects; re-run `webtext pretrain`"):
        return [json.loads(line) for line in storage.read_bytes(path).splitlines()]


NAVIGATION = (("/model", "Model"),)
ROUTES = (Route("/model", show_model),)
