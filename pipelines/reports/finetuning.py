"""The page of a fine-tuning, `finetune.html`, and that of a sweep over seeds and checkpoints of a pretraining."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from pipelines.reports.charts import Axis, Chart, Series, line_chart
from pipelines.reports.evaluation import format_figure, step_chart
from pipelines.reports.render import render
from pipelines.reports.training import Rows, render_training_page

# Examples in the plot of predicted numbers.
_POINTS = 1000


class Section(NamedTuple):
    """A section of a page: a table, of rows by heading, and charts; without both, it is not shown."""

    title: str
    note: str
    rows: Sequence[Mapping[str, Any]] = ()
    charts: Sequence[Chart] = ()


def render_finetuning_page(
    results: Mapping[str, Any], examples: Rows, worst: Rows, metrics: Rows, timing: Rows, about: Mapping[str, Any]
) -> str:
    """Return the page of `results.json`, above that of the training; `metrics`, `timing`, `about` as for the latter.

    `examples` are rows of the examples file; `worst` are those of the errors to list, with shortened texts.
    """
    note = "On the validation set, with 95% intervals. Chance: one of the candidates, or always the most frequent "
    note += "label; for F1, label 1; for correlations, 0."
    columns = {"Metric": "name", "Value": "value", "Standard error": "error", "Low": "low", "High": "high"}
    rows = _select(results["metrics"], {**columns, "Chance": "chance", "Examples": "examples"})
    sections = [Section("Results", note, rows), _published(results)]
    for part in dict.fromkeys(row["part"] for row in examples):
        own = [row for row in examples if row["part"] == part]
        labels = [label.partition("|")[0] for label in results["finetune"].get("labels", {"value": []})["value"]]
        sections.append(_label_section(part, own, labels) if "nll" in own[0] else _number_section(part, own))
    note = "The most confident or largest ones. The texts are shortened here; examples-00000.parquet has them whole."
    columns = {"Place": "place", "Text": "text", "Label": "label", "Prediction": "predicted"}
    columns |= {"Probability": "confidence"} if "nll" in examples[0] else {"Squared error": "squared_error"}
    dropped = [{"Reason": reason, "Records": count} for reason, count in results["dropped"].items()]
    sections.append(Section("Errors", note, _select(worst, columns)))
    sections.append(Section("Dropped records", "dropped.jsonl lists them.", dropped))
    spikes = [row["spike"] for row in metrics if "spike" in row]
    title = f"Fine-tuning on {results['task']}"
    return render_training_page(metrics, timing, about, spikes, "finetuning.html", title=title, sections=sections)


def render_sweep_page(results: Mapping[str, Any]) -> str:
    """Return the page of the `results.json` of a sweep: the median and all values, and curves over checkpoints."""
    curves: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}
    for row in (row for row in results["metrics"] if row["step"] is not None):
        scaled = {"value": statistics.median(row["scaled"]), "chance": 0.0} if row["scaled"] else {}
        curves.setdefault(row["name"], []).append((row["step"], {**row, "kind": "share", **scaled}))
    charts = [step_chart([name], figures) for name, figures in curves.items()]
    note = "The median and the values of all seeds; each folder has the page of a run. In plots, 0 is chance and 1 the "
    note += "best published figure, if there is one."
    columns = {"Metric": "name"} | ({"Step": "step"} if curves else {}) | {"Median": "value", "Chance": "chance"}
    values = [{"Values": ", ".join(map(format_figure, row["values"]))} for row in results["metrics"]]
    rows = [left | right for left, right in zip(_select(results["metrics"], columns), values, strict=True)]
    sections = [Section("Results", note, rows, charts), _published(results)]
    return render("finetuning.html", title=f"Fine-tuning on {results['task']}", sections=sections, tiles=())


def _select(rows: Rows, columns: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the values of rows by heading."""
    return [{heading: row[name] for heading, name in columns.items()} for row in rows]


def _published(results: Mapping[str, Any]) -> Section:
    own = {figure["name"]: 100 * figure["value"] for figure in results["metrics"]}  # of the last step
    rows = [
        {"Metric": name, "Model": model, "Yours": own[name]}
        | {"Published": choice["value"], "Origin": choice["origin"], "Note": choice["note"]}
        for name, by_model in results["published"].items() if name in own for model, choice in by_model.items()
    ]  # fmt: skip
    note = "In percent. Unless the note says otherwise, they are of the test server or set; yours is of the validation "
    note += "set, on which the weights were also chosen."
    return Section("Published figures", note, rows)


def _label_section(part: str, rows: Rows, labels: Sequence[str]) -> Section:
    counts = Counter((row["label"], row["predicted"]) for row in rows)
    labels = labels or sorted({label for pair in counts for label in pair}, key=int)  # numbers of candidates
    cells = [{"Label": label} | {predicted: counts[label, predicted] for predicted in labels} for label in labels]
    note = "Examples by their label, in rows, and the prediction, in columns."
    return Section(f"Labels and predictions {part}".strip(), note, cells)


def _number_section(part: str, rows: Rows) -> Section:
    points = [(float(row["label"]), float(row["predicted"])) for row in rows[:_POINTS]]
    ends = [(end, end) for end in (min(points)[0], max(points)[0])]
    series = [Series("examples", points, "compared", has_dots=True), Series("equal to the label", ends, "reference")]
    chart = line_chart("Predictions", "Against the label.", series, Axis("label"), Axis(from_zero=False))
    return Section(f"Predictions {part}".strip(), f"{len(points):,} of {len(rows):,} examples.", charts=[chart])
