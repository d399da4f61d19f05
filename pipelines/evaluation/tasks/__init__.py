"""The kinds of tasks: what a model is asked about an example, and how its answers are measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pipelines.engine.config import make_config
from pipelines.errors import UsageError
from pipelines.evaluation.encoding import Encoder
from pipelines.evaluation.protocols import TaskInput
from pipelines.evaluation.records import check_template
from pipelines.evaluation.task import ExampleTask, Task
from pipelines.evaluation.tasks.acceptability import AcceptabilityOptions, AcceptabilityTask
from pipelines.evaluation.tasks.answer import AnswerOptions, AnswerTask
from pipelines.evaluation.tasks.choice import ChoiceOptions, ChoiceTask
from pipelines.evaluation.tasks.last_word import LastWordOptions, LastWordTask
from pipelines.evaluation.tasks.layouts import LAYOUTS
from pipelines.evaluation.tasks.perplexity import Perplexity, PerplexityOptions
from pipelines.evaluation.tasks.recitation import RecitationOptions, RecitationTask
from pipelines.evaluation.tasks.similarity import SimilarityOptions, SimilarityTask

# The options of a kind, and its function.
KINDS: dict[str, tuple[type[Any], Callable[..., Task]]] = {
    "perplexity": (PerplexityOptions, Perplexity),
    "choice": (ChoiceOptions, ChoiceTask),
    "last-word": (LastWordOptions, LastWordTask),
    "answer": (AnswerOptions, AnswerTask),
    "acceptability": (AcceptabilityOptions, AcceptabilityTask),
    "recitation": (RecitationOptions, RecitationTask),
    "similarity": (SimilarityOptions, SimilarityTask),
}

_TEMPLATES = ("prompt", "choices", "rest", "gold", "text", "labels", "text_field")


def build_task(task: TaskInput, encoder: Encoder, limit: int | None) -> Task:
    """Return a task on its files; raise UsageError for an unknown kind or option."""
    protocol = task.protocol
    if protocol.kind not in KINDS:
        raise UsageError(f"task {task.label}: unknown kind {protocol.kind!r}; known: {', '.join(KINDS)}")
    options, kind = KINDS[protocol.kind]
    config: Any = make_config(options, protocol.values(task.variant), {}, f"task {task.label}")
    for name in _TEMPLATES:
        value = getattr(config, name, ())
        for template in [value] if isinstance(value, str) else value:
            check_template(template, f"task {task.label}: {name}")
    built = kind(config, task.files, encoder, limit)
    if task.examples:
        if not isinstance(built, ExampleTask):
            raise UsageError(f"task {task.label}: takes no examples")
        layout = LAYOUTS[getattr(config, "layout", "records")]
        built.show(layout.read(task.examples), task.shots, task.seed)
    return built
