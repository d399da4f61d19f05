"""The page of an evaluation, `evaluation.html`: figures next to the paper's, plots, protocols, files and counts."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipelines.format import format_count, plural
from pipelines.reports.charts import Axis, Chart, Series, line_chart
from pipelines.reports.render import render
from pipelines.reports.training import is_wide

# The paper's names of its sizes, and the parameters of the models that were released.
PAPER_SIZES = {"117M": 124_439_808, "345M": 354_823_168, "762M": 774_030_080, "1542M": 1_557_611_200}
# The figures of tasks with choices that have the same value for a uniform guess.
_WITH_CHANCE = ("accuracy", "accuracy_normalized", "calibrated_accuracy", "gold_probability")

Result = Mapping[str, Any]


def render_evaluation_page(
    results: Mapping[str, Result],
    truncated: Mapping[str, Sequence[tuple[str, int]]],
    confident: Mapping[str, Sequence[Result]],
    compared: Sequence[Result] = (),
    steps: Mapping[int, Sequence[Result]] | None = None,
) -> str:
    """Return the page of results by task, as in `results.json`; the same results give the same bytes.

    `truncated` has the places of a task's truncated examples, with the tokens cut, and `confident` the rows of its most
    confident answers. `compared` are other models, as in `results.json`, and their compared `results` by task.
    `steps` are the results of a training's checkpoints.
    """
    models = {result["model"]["fingerprint"]: result["model"] for result in results.values()}
    return render(
        "evaluation.html",
        results=results,
        truncated=truncated,
        confident=confident,
        curves={
            task: [_curve(figure) for figure in result["metrics"] if figure["points"]]
            for task, result in results.items()
        },
        compared=compared,
        draws=figures_over_draws(results.values()),
        models=[model_title(model) for model in models.values()],
        sizes=list(PAPER_SIZES) if any(result["paper"] for result in results.values()) else [],
        charts=list(_charts(results, compared)),
        step_charts=[step_chart(*item) for item in figures_by_step(steps or {}).items()],
        **{text.__name__: text for text in (result_label, metric_title, format_figure, difference_text, paper_texts)},
        chance_level=chance_level,
        data_notes=data_notes(results.values()),
        to_json=lambda value: json.dumps(value, ensure_ascii=False),
    )


def result_label(result: Result) -> str:
    """Return the name of a task with its variant, limit and shots."""
    notes = [] if result["variant"] == "paper" else [result["variant"]]
    if result["limit"] is not None:
        notes.append(f"limit {result['limit']}")
    if result["shots"]:
        notes.append(f"{plural(result['shots'], 'shot')}, seed {result['shot_seed']}")
    return str(result["task"]) + (f" ({', '.join(notes)})" if notes else "")


def model_title(model: Mapping[str, Any]) -> str:
    """Return the path, parameters and step of a model."""
    step = "" if model["step"] is None else f", step {format_count(model['step'])}"
    return f"{model['path']} ({format_count(model['parameters'])} parameters{step})"


def metric_title(figure: Mapping[str, Any]) -> str:
    """Return the name of a metric with its unit."""
    name, unit = figure["name"], figure["unit"]
    is_named = not unit or name.startswith(f"{unit}_") or name.endswith(f"_per_{unit}")
    return str(name).replace("_", " ") + ("" if is_named else f" per {unit}")


def figures_by_step(steps: Mapping[int, Sequence[Result]]) -> dict[tuple[str, str], list[tuple[int, Result]]]:
    """Return the figures of checkpoints with their steps, by the labels of task and metric."""
    figures: dict[tuple[str, str], list[tuple[int, Result]]] = {}
    for step, results in steps.items():
        for result in results:
            for figure in result["metrics"]:
                with_chance = {**figure, "chance": chance_level(result, figure)}
                figures.setdefault((result_label(result), metric_title(figure)), []).append((step, with_chance))
    return figures


def figures_over_draws(results: Iterable[Result]) -> list[dict[str, Any]]:
    """Return the mean and standard deviation of each metric over several draws of a task's shots."""
    values: dict[tuple[str, str], list[float]] = {}
    for result in results:
        label = result_label(result).rpartition(", seed")[0] + ")"
        for figure in result["metrics"] if result["shots"] else ():
            if figure["value"] is not None:
                values.setdefault((label, metric_title(figure)), []).append(figure["value"])
    return [
        {
            "task": task,
            "metric": metric,
            "draws": len(drawn),
            "mean": statistics.fmean(drawn),
            "standard_deviation": statistics.stdev(drawn),
        }
        for (task, metric), drawn in values.items()
        if len(drawn) > 1
    ]


def difference_text(row: Mapping[str, Any]) -> str:
    """Return the difference of two models with its sign and unit; an en dash for None."""
    if row["difference"] is None:
        return "–"
    return f"{row['difference']:+.4g}" + (f" {row['unit']}" if row["unit"] else "")


def paper_texts(result: Result, name: str) -> list[str]:
    """Return the paper's figures for a metric, in the order of `PAPER_SIZES`; empty texts without figures.

    They end with an asterisk if the result may be of other data: see `data_notes`.
    """
    figures = result["paper"].get(name)
    if figures is None:
        return [""] * len(PAPER_SIZES)
    mark = "*" if any(not known for *_, known in _data_files(result)) or result.get("limit") else ""
    return ["figure only" if value is None else f"{value:g}{mark}" for value in figures]


def data_notes(results: Iterable[Result]) -> list[str]:
    """Return what is known about the data of each result that has figures of the paper next to it."""
    notes = []
    for result in results:
        examples = plural(max((figure["examples"] for figure in result["metrics"]), default=0), "example")
        for path, known in _data_files(result) if result["paper"] else ():
            what = (
                known or f"not a known copy of the {result['split']} set, so the paper's figures may be of other text"
            )
            mark, part = "" if known and not result["limit"] else "* ", "the first " if result["limit"] else ""
            notes.append(f"{mark}{result_label(result)}: {path} ({part}{examples}) is {what}.")
    return notes


def _data_files(result: Result) -> list[tuple[str, str | None]]:
    """Return the files that were evaluated, and what each is known as."""
    return [(file["path"], file["known_as"]) for file in result.get("files", ()) if file["role"] == "data"]


def chance_level(result: Result, figure: Mapping[str, Any]) -> float | None:
    """Return the value of a metric that a uniform guess has, None if it is not known."""
    if figure["name"] in _WITH_CHANCE and "right_by_chance" in result["counts"]:
        return float(result["counts"]["right_by_chance"]) / int(figure["examples"])
    return 0.5 if figure["kind"] == "roc_area" else None


def format_figure(value: float | None) -> str:
    """Format a figure with four significant digits, large ones as whole numbers; an en dash for None."""
    if value is None:
        return "–"
    return f"{value:.4g}" if abs(value) < 10000 else f"{value:,.0f}"


def _charts(results: Mapping[str, Result], compared: Sequence[Result]) -> Iterator[Chart]:
    """Yield a plot for each metric that the paper or a compared model has, too."""
    for task, result in results.items():
        for figure in result["metrics"]:
            printed = result["paper"].get(figure["name"], ())
            paper = [point for point in zip(PAPER_SIZES.values(), printed, strict=False) if point[1] is not None]
            others = [point for other in compared for point in _points(other["results"].get(task), figure["name"])]
            if paper or others:
                series = [
                    Series("this model", list(_points(result, figure["name"]))),
                    Series("compared models", sorted(others), "compared", has_dots=True),
                    Series("the paper", paper, "reference", has_dots=True),
                ]
                curve = [(x, y) for one in series for x, y in one.points]
                yield line_chart(
                    f"{result_label(result)}: {metric_title(figure)}",
                    "Against parameters.",
                    series=series,
                    x_axis=Axis("parameters", is_log=True),
                    y_axis=Axis(is_log=figure["kind"] == "perplexity" and is_wide(curve), from_zero=False),
                    chance=chance_level(result, figure),
                )


def step_chart(labels: Sequence[str], figures: Sequence[tuple[int, Result]]) -> Chart:
    """Draw a metric over training steps; of the figures, it uses `value`, `kind` and `chance`."""
    points: list[tuple[float, float]] = [
        (step, figure["value"]) for step, figure in figures if figure["value"] is not None
    ]
    y_axis = Axis(is_log=figures[0][1]["kind"] == "perplexity" and is_wide(points), from_zero=False)
    series = [Series("this model", points, has_dots=True)]
    chance = figures[0][1]["chance"]
    return line_chart(": ".join(labels), "Against training steps.", series, Axis("step"), y_axis, chance=chance)


def _curve(figure: Mapping[str, Any]) -> Chart:
    """Return the reliability diagram of a calibration error, or the risk-coverage curve of confident answers."""
    percent = Axis(is_percent=True)
    if figure["kind"] == "calibration_error":
        bins = [(point["x"], point["value"]) for point in figure["points"]]
        return line_chart(
            "Reliability.",
            f"Share of right answers in {len(bins)} bins of equally many answers, against their mean probability.",
            [Series("this model", bins, has_dots=True), Series("calibrated", [(0, 0), (1, 1)], "reference")],
            Axis("probability of the answer", is_percent=True),
            percent,
        )
    risks = [(point["x"], 1 - point["value"]) for point in figure["points"]]
    caption = "Share of wrong answers among the most confident ones."
    x_axis = Axis("coverage: share of the answers", is_percent=True)
    return line_chart("Risk and coverage.", caption, [Series("this model", risks, has_dots=True)], x_axis, percent)


def _points(result: Result | None, name: str) -> Iterator[tuple[float, float]]:
    for figure in result["metrics"] if result else ():
        if figure["name"] == name and figure["value"] is not None:
            yield result["model"]["parameters"], figure["value"]  # type: ignore[index]
