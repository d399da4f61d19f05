"""Drops documents by rules, by language and by quality, each with the value that decided."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipelines.core import inputs
from pipelines.core.config import check_known
from pipelines.core.data_card import DATA_CARD, write_data_card
from pipelines.core.document_filter import DropReason, filter_shard
from pipelines.core.document_split import document_keys
from pipelines.core.errors import InputError, UsageError
from pipelines.core.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.stages.filter.config import FilterConfig
from pipelines.stages.filter.languages import CODES, identify
from pipelines.stages.filter.quality import QualityModel, keeps
from pipelines.stages.filter.report import Tally, write_report
from pipelines.stages.filter.rules import Judgement, RuleSet, load_rules

STAGE = Stage("filter", 1, (DATA_CARD,))


@dataclasses.dataclass(frozen=True)
class FilterContext:
    """What the tasks share."""

    config: FilterConfig
    rules: RuleSet
    quality_model: str | None
    quality_fingerprint: str = ""
    output: str = ""


def filter(
    config: FilterConfig,
    *,
    documents: str | Sequence[str],
    output: str,
    options: RunOptions,
    rules: str | None = None,
    quality_model: str | None = None,
) -> Summary:
    """Write the documents that no rule drops, and a list of the others with the rule and its value.

    `documents` is the folder of a stage, or files, folders or globs as `inputs` reads them; `rules` a Python file with
    rules of the user's own, `quality_model` a model that `train_quality` wrote. Rules of lines edit the text. Raises
    UsageError for unknown rules, InputError for files that cannot be read as what they should be. Paper, section 2.1.
    """
    context, fingerprints = open_filter(config, rules, quality_model)
    source = inputs.open_configured(documents, config, options)
    options = options.for_input(inputs.size_on_disk(source.files))
    identities = {"documents": source.fingerprint, **fingerprints}
    with stage_run(STAGE, config, inputs=identities, output=output, options=options) as run:
        if not run.finished:
            context = dataclasses.replace(context, output=run.output)
            run.map(_filter_shard, source.shards, context, total=source.records)
            run.once("card", lambda: write_data_card(run.output, STAGE.name))
            run.once("report", lambda: write_report(run.output, [shard.index for shard in source.shards]))
        return run.finish()


def open_filter(
    config: FilterConfig, rules: str | None, quality_model: str | None
) -> tuple[FilterContext, dict[str, str]]:
    """Return what decides about documents, and the fingerprints of the files of which it consists."""
    rule_set, fingerprint = load_rules(config.profile, config.rule, config.set, rules)
    for language in config.language:
        check_known(language, CODES, "language", "--language")
    if config.language_score and not config.language:
        raise UsageError("--language-score needs --language: the languages to keep")
    fingerprints = {"rules": fingerprint}
    if quality_model:
        fingerprints["quality_model"] = QualityModel.load(quality_model).fingerprint
    return FilterContext(config, rule_set, quality_model, fingerprints.get("quality_model", "")), fingerprints


def decide(
    context: FilterContext, batch: pa.RecordBatch, shard: inputs.DocumentShard
) -> tuple[pa.RecordBatch, list[DropReason | None], Judgement]:
    """Return documents with their edited texts and what was measured, why each is dropped, and the values of rules."""
    config = context.config
    judgement = context.rules.judge(batch)
    texts = judgement.texts.cast(pa.string())
    languages, scores = identify(texts)
    reasons = judgement.reasons()
    columns: dict[str, pa.Array] = {
        "text": texts.cast(batch.schema.field("text").type),
        "removed_lines": pa.array(judgement.removed_lines),
        "language": languages,
        "language_score": scores,
    }
    if config.language:
        for row, (language, score) in enumerate(zip(languages.to_pylist(), scores.to_pylist(), strict=True)):
            if reasons[row] is None and (language not in config.language or score < config.language_score):
                reasons[row] = DropReason("language", f"{language or 'unknown'} {score or 0:.2f}")
    if context.quality_model:
        quality = _load_model(context.quality_model, context.quality_fingerprint).scores(texts)
        columns["quality"] = pa.array(quality)
        kept = keeps(quality, document_keys(batch, shard), config.seed, config.quality_alpha)
        for row in np.flatnonzero(~kept).tolist():
            reasons[row] = reasons[row] or DropReason("low_quality", f"quality {quality[row]:.3f}")
    return with_columns(batch, columns), reasons, judgement


@functools.lru_cache(maxsize=1)
def _load_model(path: str, fingerprint: str) -> QualityModel:
    """Load a model once per process and version of it; raise InputError if it was trained anew during the run."""
    model = QualityModel.load(path)
    if model.fingerprint != fingerprint:
        raise InputError(f"{path}: was changed while documents were filtered; run the command again")
    return model


def with_columns(batch: pa.RecordBatch, columns: dict[str, Any]) -> pa.RecordBatch:
    """Return a batch with columns replaced, or added at its end."""
    for name, values in columns.items():
        index = batch.schema.get_field_index(name)
        field = pa.field(name, values.type, nullable=name != "text")
        batch = batch.append_column(field, values) if index < 0 else batch.set_column(index, field, values)
    return batch


def _filter_shard(shard: inputs.DocumentShard, context: FilterContext) -> TaskResult:
    tally = Tally(context.rules.rules)
    reasons: list[DropReason | None] = []
    removed = 0

    def prepare(batch: pa.RecordBatch) -> pa.RecordBatch:
        nonlocal reasons, removed
        decided, reasons, judgement = decide(context, batch, shard)
        removed += int(judgement.removed_lines.sum())
        tally.add(batch, judgement.values)
        return decided

    schema = inputs.document_schema(shard)
    empty = decide(context, pa.RecordBatch.from_pylist([], schema), shard)[0].schema
    result = filter_shard(shard, context.output, lambda _: reasons, prepare, schema=empty)
    entry = tally.write(context.output, shard.index)
    return dataclasses.replace(result, files=(*result.files, entry), counts={**result.counts, "removed_lines": removed})
