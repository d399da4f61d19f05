"""Runs tasks on a model. Paper, sections 3.1 to 3.8.

A task is one run of the engine: the model's answers in parts, so that a killed run resumes after the last one, then the
examples with their metrics, and the results.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from pipelines import progress, storage
from pipelines.engine.config import check_known, make_config, places
from pipelines.engine.machine import check_memory
from pipelines.engine.manifest import ShardEntry, has_manifest, read_manifest
from pipelines.engine.run import RunOptions, TaskResult, stage_run
from pipelines.errors import ChangedRunError, InputError
from pipelines.evaluation.config import EvaluateConfig
from pipelines.evaluation.definitions import PAPER, TaskInput
from pipelines.evaluation.metrics import summarize
from pipelines.evaluation.records import check_template
from pipelines.evaluation.results_page import EXAMPLES, RESULTS, STAGE, TOKENIZER, read_results, step_folders
from pipelines.evaluation.scoring import Scorer, common_length
from pipelines.evaluation.task import Encoder, ModelFacts, Output, Request, Row, Task, hash_config, prompt_hash
from pipelines.evaluation.tasks import classification, generation, language_modelling
from pipelines.format import format_bytes
from pipelines.model.device import derived_seed, device_config, reproducible, select_device, translate_memory_errors
from pipelines.model.inference.decoding import choose_by
from pipelines.model.inference.options import SamplingOptions
from pipelines.model.io.model_folder import CONFIG_FILE, open_model
from pipelines.model.training.checkpoint import Checkpoint, find_checkpoints
from pipelines.model.training.parallel import World, process_group, torchrun_world
from pipelines.records import inputs, shards
from pipelines.reports.evaluation import model_title

_MEMORY_ADVICE = "use a smaller model, --device cpu, or a machine with more memory"
# Tokens that the model reads per part: a few minutes of work on a laptop.
_PART_TOKENS = 1 << 15
_ANSWERS = "answers"
_ANSWER_SCHEMA = pa.schema(
    [
        ("log_probs", pa.list_(pa.list_(pa.float32()))),
        ("greedy", pa.list_(pa.list_(pa.bool_()))),
        ("tokens", pa.list_(pa.int32())),
        ("ended", pa.bool_()),
        ("vector", pa.list_(pa.float32())),
    ]
)

# The options of a kind, and its function.
KINDS: dict[str, tuple[type[Any], Callable[..., Task[Any]]]] = {
    "perplexity": (language_modelling.PerplexityOptions, language_modelling.Perplexity),
    "choice": (classification.ChoiceOptions, classification.ChoiceTask),
    "last-word": (language_modelling.LastWordOptions, language_modelling.LastWordTask),
    "answer": (generation.AnswerOptions, generation.AnswerTask),
    "acceptability": (classification.AcceptabilityOptions, classification.AcceptabilityTask),
    "recitation": (generation.RecitationOptions, generation.RecitationTask),
    "similarity": (classification.SimilarityOptions, classification.SimilarityTask),
}
_TEMPLATES = ("prompt", "choices", "rest", "gold", "text", "labels", "text_field")


def evaluate(
    config: EvaluateConfig,
    *,
    tasks: Sequence[TaskInput],
    model: str,
    output: str,
    options: RunOptions,
    checkpoint: Checkpoint | None = None,
) -> list[dict[str, Any]]:
    """Run tasks on a model, or on a checkpoint of its training, and return their results, as in `results.json`.

    Every task has a folder in `output`, so that tasks can be added later. Raises UsageError for wrong options of a task
    and InputError for a file of another form before anything is computed. Processes started by torchrun share the work;
    all but rank 0 return an empty list.
    """
    trained = open_model(model, checkpoint=checkpoint)
    trained.tokenizer()  # raises if its vocabulary does not fit
    encoder = Encoder(trained.tokenizer_json, ModelFacts.of(trained))
    built = [build_task(task, encoder, config.limit) for task in tasks]
    world = torchrun_world()
    where = device_config(select_device(config.device, world.local_rank), config.precision)
    # A run on a CPU is not resumed in another precision.
    config = dataclasses.replace(config, precision="bf16" if where.bf16 else "float32")
    with process_group(world, where.device), translate_memory_errors(_MEMORY_ADVICE), reproducible(where.device):
        scorer = Scorer(trained.model.to(where.device), where)
        needed = scorer.memory_bytes(max(task.generation.max_tokens if task.generation else 0 for task in built))
        options.progress.note(
            f"evaluate: {model_title(vars(encoder.facts))}, on {where.name}, {config.precision}; needs about "
            f"{format_bytes(needed)} of memory in addition to the weights"
        )
        check_memory("evaluate: a batch", needed, where.free_memory_bytes(world.local_size), _MEMORY_ADVICE)
        # Reads all files before the first computation, so that a bad one is known at once.
        runs = [TaskRun(config, task, kind, scorer, world) for task, kind in zip(tasks, built, strict=True)]
        if world.is_rank_zero:
            try:
                return [run.run(storage.join(output, run.task.label), options) for run in runs]
            except ChangedRunError as error:
                raise ChangedRunError(f"{error}; if only right answers or scoring changed, use --rescore") from error
        for run in runs:
            run.run_worker_rank()
        return []


def evaluate_checkpoints(
    config: EvaluateConfig, *, tasks: Sequence[TaskInput], model: str, output: str, options: RunOptions
) -> dict[int, list[dict[str, Any]]]:
    """Run tasks on every checkpoint of a training, the finished model last, and return their results by step.

    Every checkpoint has a folder `step-N` in `output`. Raises InputError if there are none.
    """
    checkpoints = checkpoints_by_step(model)
    config_json = storage.read_json(storage.join(model, CONFIG_FILE))
    rewritten = {(step, task.label) for step in checkpoints for task in tasks}
    _check_one_training(output, hash_config(config_json), rewritten)
    run = functools.partial(evaluate, config, tasks=tasks, model=model, options=options)
    world = torchrun_world()
    with process_group(world, select_device(config.device, world.local_rank)):  # processes cannot connect a second time
        return {
            step: run(output=storage.join(output, f"step-{step}"), checkpoint=checkpoint)
            for step, checkpoint in checkpoints.items()
        }


def checkpoints_by_step(model: str) -> dict[int, Checkpoint | None]:
    """Return the checkpoints of a training, None for the finished model; raise InputError if there are none."""
    checkpoints: dict[int, Checkpoint | None] = {checkpoint.step: checkpoint for checkpoint in find_checkpoints(model)}
    if not checkpoints:
        raise InputError(
            f"{model}: has no checkpoints; name the folder of `webtext pretrain` with --model, or omit --checkpoints"
        )
    if has_manifest(model):  # its weights are those of the last checkpoint, which may be deleted
        checkpoints[storage.read_json(storage.join(model, CONFIG_FILE))["recipe"]["steps"]] = None
    return checkpoints


def _check_one_training(output: str, training: str, rewritten: Collection[tuple[int, str]]) -> None:
    """Raise InputError if there are results of another training's checkpoints that this run does not replace."""
    for step, folder in step_folders(output).items():
        for label, result in read_results(folder).items():
            if result["model"].get("training") != training and (step, label) not in rewritten:
                raise InputError(
                    f"{storage.join(folder, label)}: has results of another training; choose another --output, or "
                    "delete them"
                )


def rescore(
    config: EvaluateConfig, *, tasks: Sequence[TaskInput], output: str, options: RunOptions
) -> list[dict[str, Any]]:
    """Compute the metrics of tasks again from the answers in `output`, without the model.

    Raises InputError if there are none, or if the prompts differ from those that were answered.
    """
    results = []
    for task in tasks:
        folder = storage.join(output, task.label)
        if not storage.exists(storage.join(folder, RESULTS)):
            raise InputError(f"{folder}: has no results; run the task without --rescore first")
        recorded = storage.read_json(storage.join(folder, RESULTS))
        facts = msgspec.convert(recorded["model"], ModelFacts)
        encoder = Encoder(storage.read_bytes(storage.join(folder, TOKENIZER)), facts)
        same = dataclasses.replace(config, limit=recorded["limit"], precision=recorded["precision"])
        run = TaskRun(same, task, build_task(task, encoder, same.limit), None, World())
        results.append(run.run(folder, dataclasses.replace(options, overwrite=True)))
    return results


def build_task(task: TaskInput, encoder: Encoder, limit: int | None) -> Task[Any]:
    """Return a task on its files; raise UsageError for an unknown kind or option."""
    definition, where = task.definition, places(task.definition.path, "task")
    check_known(definition.kind, tuple(KINDS), "kind", where(["kind"]))
    options, kind = KINDS[definition.kind]
    config: Any = make_config(options, definition.values(task.variant), {}, where)
    for name in _TEMPLATES:
        value = getattr(config, name, ())
        for template in [value] if isinstance(value, str) else value:
            check_template(template, f"{where([name])}: {name}")
    built = kind(config, task.files, encoder, limit)
    if task.examples:
        built.show(task.examples, task.shots, task.seed)
    return built


class _Part(NamedTuple):
    """Consecutive requests: the file of their answers, the index of the first, their count, and the tokens to score."""

    name: str
    first: int
    requests: int
    tokens: int


class _Work(NamedTuple):
    """What rank 0 sends to the others: which parts to answer, in which folder, and hashes of prompts and model."""

    folder: str
    parts: list[_Part]
    prompts: str
    model: str


@dataclasses.dataclass
class TaskRun:
    """One task on one model; without a `scorer`, earlier answers are measured again.

    Raises InputError if there is nothing to ask, and for files that cannot be read.
    """

    config: EvaluateConfig
    task: TaskInput
    kind: Task[Any]
    scorer: Scorer | None
    world: World

    def __post_init__(self) -> None:
        kind = self.kind
        self._parts: list[_Part] = []
        prompts = hashlib.sha256(repr(kind.generation).encode())
        read = 0
        previous: Sequence[int] = ()
        for number, request in enumerate(kind.requests()):
            prompts.update(prompt_hash([request]).encode())
            new = kind.generation.max_tokens if kind.generation else sum(map(len, request.continuations))
            new += len(request.prefix) * kind.embeds
            if not self._parts or read >= _PART_TOKENS:
                self._parts.append(_Part(shards.shard_name(_ANSWERS, len(self._parts)), number, 0, 0))
                read = 0
            part = self._parts[-1]
            self._parts[-1] = part._replace(requests=part.requests + 1, tokens=part.tokens + new)
            read += new + len(request.prefix) - common_length(previous, request.prefix)
            previous = request.prefix
        if not self._parts:
            raise InputError(f"{self.task.files[0]}: has no examples for the task {self.task.definition.name}")
        # A hash of all that the model is asked.
        self._prompts = prompts.hexdigest()

    def run(self, output: str, options: RunOptions) -> dict[str, Any]:
        """Compute what is not in the folder yet, and return the content of its results.json."""
        task, model = self.task, self.kind.encoder.facts.fingerprint
        files = inputs.fingerprint_files(task.files)
        fingerprints = {
            "model": model,
            "files": files,
            "protocol": repr(sorted(task.definition.values(task.variant).items())),
            "prompts": self._prompts,
            "part_tokens": str(_PART_TOKENS),
        }
        if task.examples:
            fingerprints["examples"] = inputs.fingerprint_files(task.examples)
        is_rescored = self.scorer is None
        if is_rescored and read_manifest(output).identity.inputs.get("prompts") != self._prompts:
            raise InputError(f"{task.label}: the stored answers belong to other prompts; use --overwrite")
        with stage_run(
            STAGE, self.config, inputs=fingerprints, output=output, options=options, reopen=is_rescored
        ) as run:
            if run.finished:
                self.world.broadcast(None)
            else:
                phase = f"{task.label} {_ANSWERS}"
                if is_rescored:

                    def link(entry: ShardEntry) -> TaskResult:
                        for file in entry.files:
                            storage.link(storage.join(output, file.name), storage.join(run.output, file.name))
                        return TaskResult(files=entry.files)

                    # The parts of the earlier result may be divided differently.
                    answered = [entry for entry in read_manifest(output).shards if entry.phase == phase]
                    entries = run.map(link, answered, phase=phase, serial=True)
                else:
                    todo = [part for part in self._parts if not run.resumed_entry(phase, part.name)]
                    self.world.broadcast(_Work(run.output, todo, self._prompts, model))
                    results, cost = self._answers(todo, run.output), operator.attrgetter("tokens")
                    entries = run.map(
                        lambda _: next(results), self._parts, phase=phase, unit="tokens", cost=cost, serial=True
                    )
                run.once(f"{task.label} examples", lambda: self._measure(entries, run.output, files))
            run.finish()
        content: dict[str, Any] = storage.read_json(storage.join(output, RESULTS))
        return content

    def run_worker_rank(self) -> None:
        """Answer a share of the requests alongside rank 0; raise InputError if its requests differ."""
        work: _Work | None = self.world.broadcast(None)
        if work is None:
            return
        if (work.prompts, work.model) != (self._prompts, self.kind.encoder.facts.fingerprint):
            raise InputError(
                f"rank {self.world.rank}: prompts or model differ from rank 0; start all processes with the same "
                "files, and not while a training writes checkpoints"
            )
        for _ in self._answers(work.parts, work.folder):
            pass

    def _answers(self, parts: Sequence[_Part], folder: str) -> Iterator[TaskResult]:
        """Yield, in rank 0, what was written for every part; each process answers one part at a time."""
        requests, position = self.kind.requests(), 0
        for start in range(0, len(parts), self.world.size):
            written = []
            for part in parts[start + self.world.rank : start + self.world.rank + 1]:
                skipped = part.first - position  # those of parts that are complete, or of other processes
                own = list(itertools.islice(requests, skipped, skipped + part.requests))
                position = part.first + part.requests
                with shards.write_shard(folder, part.name, _ANSWER_SCHEMA) as shard:
                    for output in self._ask(own):
                        shard.write(output._asdict())
                written.append(TaskResult(files=(shard.entry,)))
            yield from itertools.chain.from_iterable(self.world.gather(written))

    def _ask(self, requests: Sequence[Request]) -> list[Output]:
        assert self.scorer is not None
        prompts, encoder, generation = [request.prefix for request in requests], self.kind.encoder, self.kind.generation
        if self.kind.embeds:
            return self.scorer.embed(prompts)
        if generation is None:
            return self.scorer.score(requests)

        def is_complete(tokens: list[int]) -> bool:
            text = encoder.decode(tokens).lstrip()
            return tokens[-1] == encoder.end_of_text or any(end in text for end in generation.until)

        sampling = SamplingOptions(temperature=float(generation.top_k > 1), top_k=generation.top_k)
        seeds = [derived_seed(generation.seed, tuple(prompt)) for prompt in prompts]
        choose = choose_by(sampling, seeds, generation.banned)
        return self.scorer.continue_texts(prompts, generation.max_tokens, choose, is_complete)

    def _measure(self, entries: Sequence[ShardEntry], folder: str, fingerprint: str) -> TaskResult:
        """Write the examples with their metrics, and the results; raise InputError if the files have changed."""
        metrics = self.kind.metrics
        names = dict.fromkeys(name for metric in metrics for name in metric.columns)
        shares = {metric.column for metric in metrics if "share" in metric.kind}
        schema = pa.schema(
            [
                ("example", pa.int64()),
                *((name, pa.string()) for name in ("place", "cluster", "prompt", "gold", "output")),
                ("log_probs", pa.list_(pa.list_(pa.float32()))),
                ("scored", pa.int64()),
                ("cut", pa.int64()),
                *((name, pa.bool_() if name in shares else pa.float64()) for name in names),
            ]
        )
        paths = [storage.join(folder, file.name) for entry in entries for file in entry.files]
        answers = (Output(**row) for path in paths for row in shards.read_rows(path))
        rows: list[Row] = []
        with shards.write_shard(folder, EXAMPLES, schema) as shard:
            for row in self.kind.rows(answers):
                fields = row._asdict()
                shard.write(fields | fields.pop("metrics"))
                rows.append(row._replace(log_probs=[], gold="", output=""))  # not all texts in memory
                progress.advance()
        if inputs.fingerprint_files(self.task.files) != fingerprint:
            raise InputError(f"{self.task.files[0]}: changed while the task ran; run it again with --overwrite")
        whole = [row for row in rows if not row.cut]
        figures = [
            summarize(
                metrics,
                {name: np.array([float(row.metrics[name]) for row in group]) for name in names},
                [row.cluster for row in group],
            )
            for group in (rows, whole if len(whole) < len(rows) else [])
        ]
        results = self._describe() | {
            "metrics": figures[0],
            "truncated_examples": len(rows) - len(whole),
            "metrics_without_truncated": figures[1],
        }
        files = (
            shard.entry,
            shards.write_file(folder, RESULTS, storage.json_bytes(results)),
            shards.write_file(folder, TOKENIZER, self.kind.encoder.tokenizer_json),
        )
        return TaskResult(len(rows), len(rows), files=files)

    def _describe(self) -> dict[str, Any]:
        """Return task, protocol, files and model, as in `results.json`."""
        task, definition = self.task, self.task.definition
        choices = {name: dataclasses.asdict(choice) for name, choice in definition.choices.items()}
        for name, value in definition.variants.get(task.variant, {}).items():
            note = f"the protocol {task.variant}; paper: {json.dumps(choices[name]['value'], ensure_ascii=False)}"
            choices[name] = {"value": value, "origin": "variant", "note": note}
        paths = (*task.files, *task.examples)
        roles = ["data"] * len(task.files) + ["examples"] * len(task.examples)
        hashes = [storage.sha256_of(path) for path in paths]
        return {
            "task": task.name,
            "title": definition.title,
            "note": definition.note,
            "split": task.split or definition.split,
            "variant": task.variant,
            "shots": task.shots,
            "shot_seed": task.seed,
            "choices": choices,
            "counts": dict(sorted(self.kind.counts.items())),
            # Files of one name are distinguished by their folders.
            "files": [
                {"path": name, "role": role, "sha256": digest, "known_as": definition.known_files.get(digest)}
                for name, role, digest in zip(storage.names_below_common_folder(paths), roles, hashes, strict=True)
            ],
            "limit": self.config.limit,
            "precision": self.config.precision,
            "model": dataclasses.asdict(self.kind.encoder.facts),
            # Other variants may measure something else.
            "paper": {name: list(values) for name, values in definition.paper.items() if task.variant == PAPER},
        }
