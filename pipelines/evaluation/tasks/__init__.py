"""The kinds of tasks: what a model is asked about an example, and how its answers are measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipelines.engine.config import make_config
from pipelines.errors import UsageError
from pipelines.evaluation.definitions import TaskInput
from pipelines.evaluation.encoding import Encoder
from pipelines.evaluation.records import check_template
from pipelines.evaluation.task import Task
from pipelines.evaluation.tasks.classification import (
    AcceptabilityOptions,
    AcceptabilityTask,
    ChoiceOptions,
    ChoiceTask,
    SimilarityOptions,
    SimilarityTask,
)
from pipelines.evaluation.tasks.generation import AnswerOptions, AnswerTask, RecitationOptions, RecitationTask
from pipelines.evaluation.tasks.language_modelling import LastWordOptions, LastWordTask, Perplexity, PerplexityOptions

# The options of a kind, and its function.
KINDS: dict[str, tuple[type[Any], Callable[..., Task[Any]]]] = {
    "perplexity": (PerplexityOptions, Perplexity),
    "choice": (ChoiceOptions, ChoiceTask),
    "last-word": (LastWordOptions, LastWordTask),
    "answer": (AnswerOptions, AnswerTask),
    "acceptability": (AcceptabilityOptions, AcceptabilityTask),
    "recitation": (RecitationOptions, RecitationTask),
    "similarity": (SimilarityOptions, SimilarityTask),
}

_TEMPLATES = ("prompt", "choices", "rest", "gold", "text", "labels", "text_field")


def build_task(task: TaskInput, encoder: Encoder, limit: int | None) -> Task[Any]:
    """Return a task on its files; raise UsageError for an unknown kind or option."""
    definition = task.definition
    if definition.kind not in KINDS:
        raise UsageError(f"task {task.label}: unknown kind {definition.kind!r}; known: {', '.join(KINDS)}")
    options, kind = KINDS[definition.kind]
    config: Any = make_config(options, definition.values(task.variant), {}, f"task {task.label}")
    for name in _TEMPLATES:
        value = getattr(config, name, ())
        for template in [value] if isinstance(value, str) else value:
            check_template(template, f"task {task.label}: {name}")
    built = kind(config, task.files, encoder, limit)
    if task.examples:
        built.show(task.examples, task.shots, task.seed)
    return built
