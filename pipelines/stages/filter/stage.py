"""Drops documents by rules, by language and by quality, each with the value that decided.

`explain` and `sample_funnel` show what would be dropped, without writing anything.
"""

from __future__ import annotations

import dataclasses
import functools
import locale
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipelines.algorithms.quality.redaction import redact_texts
from pipelines.engine.config import read_toml
from pipelines.engine.run import RunOptions, Stage, Summary, TaskResult, stage_run
from pipelines.errors import InputError, UsageError
from pipelines.format import suggest_nearest
from pipelines.records import inputs, shards
from pipelines.records.data_card import DATA_CARD, write_data_card
from pipelines.records.document_filter import DropReason, filter_shard
from pipelines.records.document_split import document_keys
from pipelines.records.drops import Drops
from pipelines.records.tally import Tally
from pipelines.records.text_columns import is_text, urls_of
from pipelines.stages.filter.config import FilterConfig
from pipelines.stages.filter.languages import ALL, CODES, identify
from pipelines.stages.filter.quality import ALPHA, QualityModel, draw_thresholds
from pipelines.stages.filter.report import PAGE, REDACTED, TABLES, tally_documents, write_report
from pipelines.stages.filter.rules import OTHER_REASONS, RuleResults, RuleSet, load_rules
from pipelines.storage.resources import data_path

STAGE = Stage("filter", 5, (PAGE, TABLES, DATA_CARD))


class Decisions(NamedTuple):
    """Documents with edited texts and measured columns, the reason to drop each (None: it is kept), the values of the
    rules, the names of the measured columns, and the placeholders by kind in the texts that are kept.
    """

    documents: pa.RecordBatch
    reasons: list[DropReason | None]
    results: RuleResults
    measured: list[str]
    redacted: Counter[str]


@dataclasses.dataclass(frozen=True)
class DocumentFilter:
    """The rules, languages and model that decide which documents are kept, with the content of their files."""

    config: FilterConfig
    rules: RuleSet
    quality_model: QualityModel | None

    @classmethod
    def open(cls, config: FilterConfig, rules: str | None, quality_model: str | None) -> DocumentFilter:
        """Read the user's rules and a model; raise UsageError for options that conflict."""
        for language in config.language:
            if language not in (*CODES, ALL):
                code = locale.locale_alias.get(language.lower(), "")[:2] or "a code of ISO 639-1, such as en"
                raise UsageError(f"--language {language}: unknown language; use {code}")
        if config.quality_alpha != ALPHA and not quality_model:
            raise UsageError("--quality-alpha needs --quality-model, which scores the documents")
        _read_licenses(config.license)  # raises for unknown ones
        rule_set = load_rules(config.profile, config.rule, config.set, rules)
        return cls(config, rule_set, QualityModel.load(quality_model) if quality_model else None)

    @property
    def fingerprints(self) -> dict[str, str]:
        """Hashes of the rules and of the model, which the config only names."""
        model = {"quality_model": self.quality_model.fingerprint} if self.quality_model else {}
        return {"rules": self.rules.fingerprint, **model}

    def _unlicensed(self, batch: pa.RecordBatch) -> list[str | None]:
        """Return the license of each document, or `unknown`, None if `--license` names it."""
        if "license" not in batch.schema.names or not is_text(batch.schema.field("license").type):
            raise InputError("--license: the input has no texts in a column license; use documents of extract")
        chosen = _read_licenses(self.config.license)
        return [None if chosen.fullmatch(name or "") else name or "unknown" for name in batch["license"].to_pylist()]

    def decide(self, batch: pa.RecordBatch, shard: inputs.DocumentShard) -> Decisions:
        """Decide which documents of a batch are kept."""
        results = self.rules.apply(batch)
        texts = results.texts.cast(pa.string())
        reasons = results.reasons()
        emptied = pc.equal(pc.binary_length(texts), 0).to_numpy(zero_copy_only=False) & (results.removed_lines > 0)
        for row in np.flatnonzero(emptied).tolist():
            reasons[row] = reasons[row] or DropReason("empty_text")
        for row, name in enumerate(self._unlicensed(batch) if self.config.license else ()):
            reasons[row] = reasons[row] or (DropReason("license", name) if name else None)
        columns: dict[str, pa.Array] = {
            "text": texts.cast(batch.schema.field("text").type),
            "removed_lines": pa.array(results.removed_lines),
        }
        if self.config.language:
            # Of documents that no rule drops: the others are not written.
            is_kept = pa.array([reason is None for reason in reasons], pa.bool_())
            languages, scores = identify(texts.filter(is_kept))
            for name, values in (("language", languages), ("language_score", scores)):
                columns[name] = pc.replace_with_mask(pa.nulls(len(texts), values.type), is_kept, values)
            rows = np.flatnonzero(is_kept.to_numpy(zero_copy_only=False)).tolist()
            for row, language, score in zip(rows, languages.to_pylist(), scores.to_pylist(), strict=True):
                is_chosen = ALL in self.config.language or language in self.config.language
                if not is_chosen or (score or 0) < self.config.language_score:
                    reasons[row] = DropReason("language", f"{language or 'unknown'} {score or 0:.3f}")
        if self.quality_model:
            quality = self.quality_model.scores(texts)
            columns["quality"] = pa.array(quality)
            least = draw_thresholds(document_keys(batch, shard), self.config.seed, self.config.quality_alpha)
            for row in np.flatnonzero(quality <= least).tolist():
                detail = f"quality {quality[row]:.4f} is not above the draw {least[row]:.4f}"
                reasons[row] = reasons[row] or DropReason("low_quality", detail)
        placeholders = Counter(dict.fromkeys(self.config.redact, 0))
        if self.config.redact:
            is_kept = pa.array([reason is None for reason in reasons], pa.bool_())
            # Of documents that are kept, and last: no rule or model depends on the placeholders.
            redacted, columns["redactions"] = redact_texts(pc.if_else(is_kept, texts, ""), self.config.redact)
            columns["text"] = redacted.cast(columns["text"].type)
            placeholders.update(columns["redactions"].flatten().field("kind").to_pylist())
        measured = [name for name in columns if name != "text"]
        for name in ("title", "author") if self.config.redact else ():
            if name in batch.schema.names and is_text(batch.schema.field(name).type):
                columns[name], _ = redact_texts(batch.column(name), self.config.redact)
        for name, values in columns.items():
            index, field = batch.schema.get_field_index(name), pa.field(name, values.type, nullable=name != "text")
            batch = batch.append_column(field, values) if index < 0 else batch.set_column(index, field, values)
        return Decisions(batch, reasons, results, measured, placeholders)


@functools.cache
def _read_licenses(values: tuple[str, ...]) -> re.Pattern[str]:
    """Return the pattern of the names that `--license` stands for; raise UsageError for an unknown license."""
    table = read_toml(data_path("licenses.toml"), dict[str, dict[str, str]])
    groups, patterns = table["groups"], list[str]()
    known = [*groups, *"|".join(groups.values()).split("|"), *" ".join(table["known"].values()).split()]
    for name in ",".join(values).lower().split(","):
        name = name.strip()
        if name and not {name, re.sub(r"-\d.*", "", name)} & {*known}:
            hint = suggest_nearest(name, known, "use a name such as cc-by-4.0 or cc-by, or redistributable")
            raise UsageError(f"--license {name}: unknown license; {hint}")
        patterns += [groups.get(name) or re.escape(name)] if name else []
    return re.compile(rf"({'|'.join(patterns) or '(?!)'})(-\d.*)?")


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
    the user's rules, `quality_model` a model that `train_quality` wrote. Rules of lines edit the text. Raises
    UsageError for unknown rules, InputError for files that cannot be read as what they should be. Paper, section 2.1.
    """
    document_filter = DocumentFilter.open(config, rules, quality_model)
    source = inputs.open_configured(documents, config, options, output)
    options = options.for_input(inputs.size_on_disk(source.files))
    identities = {"documents": source.fingerprint, **document_filter.fingerprints}
    with stage_run(STAGE, config, inputs=identities, output=output, options=options, texts=source.files) as run:
        if not run.finished:
            indexes = [shard.index for shard in source.shards]
            run.map(_filter_shard, source.shards, _Context(document_filter, run.output), total=source.records)
            run.once("card", lambda: write_data_card(run.output, STAGE.name))
            run.once("report", lambda: write_report(run.output, indexes, document_filter.rules.rules))
        return run.finish()


@dataclasses.dataclass(frozen=True)
class _Context:
    """The context of the tasks."""

    document_filter: DocumentFilter
    output: str


def _filter_shard(shard: inputs.DocumentShard, context: _Context) -> TaskResult:
    document_filter, output, tally = context.document_filter, context.output, Tally()
    removed, kinds = 0, document_filter.config.redact

    def decide(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, list[DropReason | None]]:
        nonlocal removed
        decided, reasons, results, measured, redacted = document_filter.decide(batch, shard)
        is_kept = np.array([reason is None for reason in reasons], np.bool_)
        removed += int(results.removed_lines[is_kept].sum())
        tally.counter(REDACTED).update(redacted)
        tally_documents(tally, batch, results.values, decided.select(measured), reasons, kinds)
        return decided, reasons

    empty = pa.RecordBatch.from_pylist([], inputs.document_schema(shard))
    schema = document_filter.decide(empty, shard).documents.schema
    result = filter_shard(shard, output, decide, schema)
    entry = tally.write(output, shards.shard_name("report", shard.index, "json"))
    counts = {"removed_lines": removed} | {f"redacted_{kind}": tally.counter(REDACTED)[kind] for kind in kinds}
    return dataclasses.replace(result, files=(*result.files, entry), counts={**result.counts, **counts})


def explain(document_filter: DocumentFilter, source: inputs.DocumentInput, query: str) -> dict[str, Any]:
    """Return how the rules judge the document with an id or URL; raise InputError if there is no such document.

    `values` has for each rule the value of the document and whether the rule drops it, `measured` further measurements
    of the text, `reason` and `detail` why the document is dropped, None if it is kept.
    """
    for shard in source.undivided:
        for batch in inputs.read_documents(shard, Drops()):
            is_url = pa.array([url == query for url in urls_of(batch)], pa.bool_())
            matches = pc.or_(pc.equal(batch.column("id"), query), is_url)
            if not pc.any(matches).as_py():
                continue
            decided, [reason], results, measured, _ = document_filter.decide(batch.filter(matches)[:1], shard)
            [row] = decided.drop_columns(["text"]).to_pylist()
            return {
                "id": row["id"],
                "url": urls_of(decided)[0],
                "values": results.describe_first(),
                "measured": {name: row[name] for name in measured},
                "reason": reason.reason if reason else None,
                "detail": reason.detail if reason else None,
            }
    raise InputError(f"{query}: no document of the input has this id or URL")


def sample_funnel(document_filter: DocumentFilter, source: inputs.DocumentInput, count: int) -> dict[str, Any]:
    """Return what would be dropped of `count` documents, the first of each shard; raise InputError if there are none.

    These are the number of `documents` and of their `bytes`, the `kept_bytes`, the placeholders `redacted` per kind,
    and the documents `dropped` per reason, in the order of the rules. If a shard has fewer documents than its share,
    later shards contribute more.
    """
    dropped: Counter[str] = Counter()
    redacted: Counter[str] = Counter()
    total = size = kept = 0
    for number, shard in enumerate(source.shards):
        share = -(-(count - total) // (len(source.shards) - number))
        for batch in inputs.read_documents(shard, Drops()) if share else ():
            batch = batch[:share]
            decided, reasons, *_, placeholders = document_filter.decide(batch, shard)
            dropped.update(reason.reason for reason in reasons if reason)
            is_kept = pa.array([reason is None for reason in reasons], pa.bool_())
            size += pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0
            kept += pc.sum(pc.binary_length(decided.column("text")).filter(is_kept)).as_py() or 0
            redacted.update(placeholders)
            total += batch.num_rows
            share -= batch.num_rows
            if not share:
                break
    if not total:
        raise InputError("the input has no documents")
    order = dict.fromkeys([*(rule.name for rule in document_filter.rules.rules), *OTHER_REASONS])
    funnel = {"documents": total, "bytes": size, "kept_bytes": kept, "redacted": dict(redacted)}
    return {**funnel, "dropped": {name: dropped[name] for name in order if dropped[name]}}
