"""One task on one model: the answers of the model, in parts that a kill cannot lose, and what they amount to."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from pipelines import progress, storage
from pipelines.engine.manifest import ShardEntry, read_manifest
from pipelines.engine.run import RunOptions, Stage, StageRun, TaskResult, stage_run
from pipelines.errors import ChangedRunError, InputError
from pipelines.evaluation.encoding import Encoder, ModelFacts
from pipelines.evaluation.protocols import PAPER, TaskInput
from pipelines.evaluation.results import summarize
from pipelines.evaluation.scoring import Scorer, common_length, draw_top_k
from pipelines.evaluation.task import Output, Request, Task, prompt_hash
from pipelines.model.training.parallel import World
from pipelines.records import inputs, shards

RESULTS = "results.json"
TOKENIZER = "tokenizer.json"
STAGE = Stage("evaluate", 1, (RESULTS, TOKENIZER))
_EXAMPLES, _ANSWERS = "examples", "answers"
EXAMPLES = shards.shard_name(_EXAMPLES, 0)
# Tokens that the model reads for one part: some minutes of work on a laptop.
_PART_TOKENS = 1 << 15
_ANSWER_SCHEMA = pa.schema(
    [
        ("log_probs", pa.list_(pa.list_(pa.float32()))),
        ("greedy", pa.list_(pa.list_(pa.bool_()))),
        ("tokens", pa.list_(pa.int32())),
        ("ended", pa.bool_()),
        ("vector", pa.list_(pa.float32())),
    ]
)


class Part(NamedTuple):
    """Requests in a row: the name of the file of their answers, the first, how many, and the tokens to be scored."""

    name: str
    first: int
    requests: int
    tokens: int


class _Shared(NamedTuple):
    """What rank 0 sends to the others: where to write the answers to which parts, and hashes of prompts and model."""

    folder: str
    parts: list[Part]
    prompts: str
    model: str


class Plan(NamedTuple):
    """The parts of a task, and a hash of all that the model is asked."""

    parts: list[Part]
    prompts: str


@dataclasses.dataclass
class TaskRun:
    """One task on one model; without a `scorer`, earlier answers are measured again."""

    config: Any
    task: TaskInput
    function: Task
    facts: ModelFacts
    tokenizer_json: bytes
    encoder: Encoder
    scorer: Scorer | None
    world: World

    def chunks(self) -> Plan:
        """Divide the requests; raise InputError if there are none."""
        parts: list[Part] = []
        prompts = hashlib.sha256(repr(self.function.generation).encode())
        first = count = read = scored = 0
        generation = self.function.generation
        previous: Sequence[int] = ()
        for number, request in enumerate(self.function.requests()):
            if read >= _PART_TOKENS:
                parts.append(Part(shards.shard_name(_ANSWERS, len(parts)), first, count, scored))
                first, count, read, scored = number, 0, 0, 0
            prompts.update(prompt_hash([request]).encode())
            new = generation.max_tokens if generation else sum(map(len, request.continuations))
            new += len(request.prefix) * self.function.embeds
            read += new + len(request.prefix) - common_length(previous, request.prefix)
            count, scored, previous = count + 1, scored + new, request.prefix
        if count:
            parts.append(Part(shards.shard_name(_ANSWERS, len(parts)), first, count, scored))
        if not parts:
            raise InputError(f"{self.task.files[0]}: has no examples for the task {self.task.protocol.name}")
        return Plan(parts, prompts.hexdigest())

    def run(self, output: str, options: RunOptions, plan: Plan) -> dict[str, Any]:
        """Compute what is not in the folder yet, and return the content of its results.json."""
        files = inputs.fingerprint_files(self.task.files)
        fingerprints = {
            "model": self.facts.fingerprint,
            "files": files,
            "protocol": repr(sorted(self.task.protocol.values(self.task.variant).items())),
            "prompts": plan.prompts,
            "part_tokens": str(_PART_TOKENS),
        }
        if self.task.examples:
            fingerprints["examples"] = inputs.fingerprint_files(self.task.examples)
        is_rescored = self.scorer is None
        if is_rescored and read_manifest(output).identity.inputs.get("prompts") != plan.prompts:
            raise InputError(
                f"{self.task.label}: the answers are not to the prompts of this task; run it again with --overwrite"
            )
        with (
            _pointing_to_rescore(),
            stage_run(
                STAGE, self.config, inputs=fingerprints, output=output, options=options, reopen=is_rescored
            ) as run,
        ):
            if not run.finished:
                parts = self._adopt_answers(run, output) if is_rescored else plan.parts
                phase = f"{self.task.label} {_ANSWERS}"
                todo = [part for part in parts if not run.resumed_entry(phase, part.name)]
                self.world.broadcast(_Shared(run.output, todo, plan.prompts, self.facts.fingerprint))
                results = self._answers(todo, run.output)
                entries = run.map(
                    lambda _part: next(results),
                    parts,
                    phase=phase,
                    unit="tokens",
                    cost=lambda part: part.tokens,
                    serial=True,
                )
                run.once(f"{self.task.label} {_EXAMPLES}", lambda: self._measure(entries, run.output, files))
            else:
                self.world.broadcast(None)
            run.finish()
        content: dict[str, Any] = storage.read_json(storage.join(output, RESULTS))
        return content

    def run_worker_rank(self, plan: Plan) -> None:
        """Answer a share of the requests along with rank 0; raise InputError if that has other ones."""
        if (shared := self.world.broadcast(None)) is None:
            return
        if (shared.prompts, shared.model) != (plan.prompts, self.facts.fingerprint):
            raise InputError(
                f"rank {self.world.rank}: has other prompts or another model than rank 0; name the same files in all "
                "processes, and no training that writes checkpoints"
            )
        for _ in self._answers(shared.parts, shared.folder):
            pass

    def _answers(self, parts: Sequence[Part], folder: str) -> Iterator[TaskResult]:
        """Yield, in rank 0, what was written for every part; the processes answer a part each at a time."""
        requests, position = self.function.requests(), 0
        for start in range(0, len(parts), self.world.size):
            written = []
            for part in parts[start + self.world.rank : start + self.world.rank + 1]:
                skipped = part.first - position  # those of parts that are complete, or of other processes
                own = list(itertools.islice(requests, skipped, skipped + part.requests))
                position = part.first + part.requests
                written.append(self._answer(own, folder, part.name))
            yield from itertools.chain.from_iterable(self.world.gather(written))

    def _adopt_answers(self, run: StageRun, folder: str) -> list[Part]:
        """Take the answers of the earlier result, and return its parts, which may be divided differently."""
        parts = []
        for entry in read_manifest(folder).shards:
            if entry.phase.endswith(_ANSWERS):
                for file in entry.files:
                    storage.link(storage.join(folder, file.name), storage.join(run.output, file.name))
                run.adopt_entry(entry)
                parts.append(Part(entry.name, 0, 0, 0))
        return parts

    def _answer(self, requests: Sequence[Request], folder: str, name: str) -> TaskResult:
        with shards.write_shard(folder, name, _ANSWER_SCHEMA) as shard:
            for output in self._outputs(requests):
                shard.writer.write(output._asdict())
        return TaskResult(files=(shard.entry,))

    def _outputs(self, requests: Sequence[Request]) -> Iterator[Output]:
        if self.scorer is None:
            raise InputError(f"the task {self.task.label} has more examples than were answered; omit --rescore")
        if self.function.embeds:
            for vector in self.scorer.embed([request.prefix for request in requests]).astype(np.float32):
                yield Output([], [], [], True, vector.tolist())
            return
        generation = self.function.generation
        if generation is None:
            for scores in self.scorer.score(requests):
                log_probs = [score.log_probs.astype(np.float32).tolist() for score in scores]
                yield Output(log_probs, [score.greedy.tolist() for score in scores], [], True)
            return

        def is_complete(_number: int, tokens: list[int]) -> bool:
            text = self.encoder.decode(tokens).lstrip()
            return tokens[-1] == self.encoder.end_of_text or any(end in text for end in generation.until)

        prompts = [request.prefix for request in requests]
        choose = draw_top_k(generation.top_k, generation.seed, prompts, generation.banned)
        for continuation in self.scorer.continue_texts(prompts, generation.max_tokens, is_complete, choose):
            yield Output([continuation.log_probs], [], continuation.tokens, continuation.ended)

    def _measure(self, entries: Sequence[ShardEntry], folder: str, fingerprint: str) -> TaskResult:
        """Write the examples with their metrics, and the results; raise InputError if the files are no longer those."""
        metrics = self.function.metrics
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
        columns: dict[str, list[float]] = {name: [] for name in names}
        clusters: list[str] = []
        cuts: list[int] = []
        paths = [storage.join(folder, file.name) for entry in entries for file in entry.files]
        answers = (Output(**row) for path in paths for row in shards.read_rows(path))
        with shards.write_shard(folder, EXAMPLES, schema) as shard:
            for row in self.function.rows(answers):
                fields = {name: value for name, value in vars(row).items() if name != "metrics"}
                shard.writer.write({**fields, **row.metrics})
                for name, values in columns.items():
                    values.append(float(row.metrics[name]))
                clusters.append(row.cluster)
                cuts.append(row.cut)
                progress.advance()
        if inputs.fingerprint_files(self.task.files) != fingerprint:
            raise InputError(f"{self.task.files[0]}: changed while the task ran; run it again with --overwrite")
        arrays = {name: np.array(values) for name, values in columns.items()}
        results = self._describe() | {
            "metrics": _figures(summarize(metrics, arrays, clusters)),
            "truncated_examples": sum(cut > 0 for cut in cuts),
            "metrics_without_truncated": [],
        }
        whole = np.array(cuts) == 0
        if not whole.all():
            kept = {name: values[whole] for name, values in arrays.items()}
            figures = summarize(metrics, kept, list(itertools.compress(clusters, whole)))
            results["metrics_without_truncated"] = _figures(figures)
        files = (
            shard.entry,
            shards.write_file(folder, RESULTS, storage.json_bytes(results)),
            shards.write_file(folder, TOKENIZER, self.tokenizer_json),
        )
        return TaskResult(len(clusters), len(clusters), files=files)

    def _describe(self) -> dict[str, Any]:
        """Return what the results are of: task, protocol, files and model."""
        protocol, variant = self.task.protocol, self.task.variant
        replaced = protocol.variants.get(variant, {})
        choices = {name: dataclasses.asdict(choice) for name, choice in protocol.choices.items()}
        for name, value in replaced.items():
            note = f"the protocol {variant}; paper: {json.dumps(choices[name]['value'], ensure_ascii=False)}"
            choices[name] = {"value": value, "origin": "variant", "note": note}
        return {
            "task": self.task.name,
            "title": protocol.title,
            "note": protocol.note,
            "split": self.task.split or protocol.split,
            "variant": variant,
            "shots": self.task.shots,
            "shot_seed": self.task.seed,
            "choices": choices,
            "counts": dict(sorted(self.function.counts.items())),
            "files": self._describe_files(),
            "limit": self.config.limit,
            "precision": self.config.precision,
            "model": dataclasses.asdict(self.facts),
            # Other variants may measure something else.
            "paper": {name: list(values) for name, values in protocol.paper.items() if variant == PAPER},
        }

    def _describe_files(self) -> list[dict[str, Any]]:
        """Return the files with their hashes; files of one name are distinguished by their folders."""
        paths = (*self.task.files, *self.task.examples)
        roles = ["data"] * len(self.task.files) + ["examples"] * len(self.task.examples)
        hashes = [storage.sha256_of(path) for path in paths]
        return [
            {"path": name, "role": role, "sha256": digest, "known_as": self.task.protocol.known_files.get(digest)}
            for name, role, digest in zip(storage.names_below_common_folder(paths), roles, hashes, strict=True)
        ]


@contextlib.contextmanager
def _pointing_to_rescore() -> Iterator[None]:
    try:
        yield
    except ChangedRunError as error:
        raise ChangedRunError(f"{error}; if only right answers or scoring changed, use --rescore") from error


def _figures(figures: Sequence[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(figure) for figure in figures]
