"""Rules, and the profiles in `data/filters/` that name them with their thresholds and sources.

A rule compares a statistic of a text with a bound. Statistics are those of `algorithms.quality`, or functions in a
user's own file. A profile may have rules of lines, which edit the text before its other rules are applied.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import math
import numbers
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipelines import storage
from pipelines.algorithms.quality.lines import LINE_STATISTICS, LineRules, edit_lines
from pipelines.algorithms.quality.statistics import STATISTICS, describe
from pipelines.engine.config import check_known, describe_choices, read_toml
from pipelines.errors import InputError, UsageError
from pipelines.records.document_filter import DropReason, json_fields
from pipelines.storage.resources import data_names, data_path

# The prefix of the names of a user's functions, which may have the name of a statistic.
_OWN = "own."
# The reasons to drop documents that pass all rules, in this order.
OTHER_REASONS = ("empty_text", "license", "language", "low_quality")
_LINE_NAMES, _NAMES = tuple(LINE_STATISTICS), tuple(STATISTICS)

Values = npt.NDArray[np.float64]
Threshold = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A document is dropped for the reason `name` if its statistic is below `min` or above `max`."""

    name: Annotated[str, msgspec.Meta(pattern="^[a-z][a-z0-9_]*$")]
    statistic: str
    min: Threshold | None = None
    max: Threshold | None = None
    source: str = ""

    def __post_init__(self) -> None:
        """Raise ValueError for a rule without a threshold, or with two."""
        if (self.min is None) == (self.max is None):
            raise ValueError(f"rule {self.name} needs either min or max")

    @property
    def bound(self) -> float:
        """The threshold."""
        bound = self.max if self.min is None else self.min
        assert bound is not None
        return bound

    def fails(self, values: Values) -> npt.NDArray[np.bool_]:
        """Return which documents are dropped."""
        return values > self.bound if self.min is None else values < self.bound

    def describe(self, value: float) -> str:
        """Return a value with the threshold, in words."""
        return f"{self.statistic} {value:g} is {'above' if self.min is None else 'below'} {self.bound:g}"


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules of lines, then rules, as in a file of `data/filters/`."""

    version: int
    description: str
    rule: tuple[Rule, ...] = ()
    lines: LineRules | None = None

    def __post_init__(self) -> None:
        """Raise ValueError for rules that contradict each other."""
        names = [*OTHER_REASONS, *(rule.name for rule in self.rule)]
        for number, rule in enumerate(self.rule):
            place = f" - at `$.rule[{number}]"  # as msgspec writes it
            if names.count(rule.name) > 1:
                raise ValueError(f"is the name of another rule or reason; rename the rule{place}.name`")
            if rule.statistic not in (known := [*STATISTICS, *LINE_STATISTICS]):
                raise ValueError(f"{describe_choices(rule.statistic, known)}{place}.statistic`")
            if rule.statistic in LINE_STATISTICS and self.lines is None:
                raise ValueError(f"needs a table [lines]{place}.statistic`")


@dataclasses.dataclass(frozen=True)
class Document:
    """The argument of a user's rule: the text, its statistics, and the other columns and fields."""

    text: str
    statistics: Mapping[str, float]
    metadata: Mapping[str, Any]


class RuleResults(NamedTuple):
    """The edited texts of a batch, the number of lines removed from each, and the values of every rule."""

    texts: pa.Array
    removed_lines: npt.NDArray[np.int32]
    values: list[tuple[Rule, Values]]

    def reasons(self) -> list[DropReason | None]:
        """Return for each document the first rule that drops it, or None."""
        reasons: list[DropReason | None] = [None] * len(self.texts)
        for rule, values in self.values:
            rows = np.flatnonzero(rule.fails(values))
            describe = functools.cache(rule.describe)  # many documents have the same number of words
            for row, value in zip(rows.tolist(), values[rows].tolist(), strict=True):
                reasons[row] = reasons[row] or DropReason(rule.name, describe(value))
        return reasons

    def describe_first(self) -> list[dict[str, Any]]:
        """Return each rule with the value of the first document, and whether the rule drops it."""
        return [
            {"rule": rule.name, "statistic": rule.statistic, "value": float(values[0]), "min": rule.min,
             "max": rule.max, "drops": bool(rule.fails(values)[0]), "source": rule.source}
            for rule, values in self.values
        ]  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RuleSet:
    """The profiles of a run in order, each with its rules of lines; `own_file` has functions of the user.

    Its content is part of the rules, so that all processes run the functions whose hash, with that of all `profiles`,
    identifies the result.
    """

    steps: tuple[tuple[LineRules | None, tuple[Rule, ...]], ...]
    own_file: str | None = None
    own_source: bytes = b""
    profiles: bytes = b""

    @property
    def fingerprint(self) -> str:
        """Hash of the files of rules, which the options only name."""
        return hashlib.sha256(self.profiles + self.own_source).hexdigest()

    @property
    def rules(self) -> list[Rule]:
        """All rules, in order."""
        return [rule for _, rules in self.steps for rule in rules]

    def apply(self, batch: pa.RecordBatch) -> RuleResults:
        """Apply all rules to documents."""
        texts = batch.column("text")
        removed = np.zeros(len(texts), np.int32)
        values: list[tuple[Rule, Values]] = []
        table = of_lines = None
        needed = {rule.statistic for rule in self.rules}
        if any(name.startswith(_OWN) for name in needed):
            needed.update(STATISTICS)
        for lines, rules in self.steps:
            if lines is not None:
                texts, of_lines = edit_lines(texts, lines)
                removed += of_lines[:, 0].astype(np.int32)
                table = None
            for rule in rules:
                if rule.statistic in LINE_STATISTICS:
                    assert of_lines is not None
                    values.append((rule, of_lines[:, _LINE_NAMES.index(rule.statistic)]))
                    continue
                table = describe(texts, needed) if table is None else table
                if rule.statistic in STATISTICS:
                    values.append((rule, table[:, _NAMES.index(rule.statistic)]))
                else:
                    values.append((rule, self._own_values(rule.statistic, texts, table, batch)))
        return RuleResults(texts, removed, values)

    def _own_values(self, name: str, texts: pa.Array, table: Values, batch: pa.RecordBatch) -> Values:
        assert self.own_file is not None
        name = name.removeprefix(_OWN)
        function = own_functions(self.own_file, self.own_source)[name]
        is_bounded = hasattr(function, "min") or hasattr(function, "max")
        rows = batch.drop_columns(["text"]).to_pylist()
        values = np.empty(len(texts))
        for number, (text, row) in enumerate(zip(texts.to_pylist(), rows, strict=True)):
            metadata = {**json_fields(row.get("metadata")), **row}
            document = Document(text, dict(zip(_NAMES, table[number].tolist(), strict=True)), metadata)
            where = f"for document {row['id']}"
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    value = function(document)
                values[number] = value if isinstance(value, numbers.Real | np.bool_) else math.nan
            except (Exception, SystemExit) as error:
                problem = f"{type(error).__name__}: {error}"
                raise InputError(f"{self.own_file}: {name} raised {problem} {where}") from error
            is_finite = math.isfinite(values[number])
            if not is_finite or not (is_bounded or isinstance(value, bool | np.bool_)):
                expected = f"a bool, or set {name}.max or {name}.min" if is_finite else "a finite number or a bool"
                raise InputError(f"{self.own_file}: {name} returned {value!r} {where}; return {expected}")
        return values


def load_rules(
    profiles: Sequence[str], further: Sequence[str], thresholds: Sequence[str], own_file: str | None
) -> RuleSet:
    """Return the rules of a run.

    `further` are names of rules of any profile or of functions in `own_file`; `thresholds` are `RULE=VALUE` or
    `RULE=off`. Raises UsageError for unknown names and invalid profiles, InputError for a file that is not Python.
    """
    chosen = {name: read_profile(name) for name in profiles}
    if len(chosen) < len(profiles):
        twice = next(name for name in profiles if profiles.count(name) > 1)
        raise UsageError(f"--profile: {twice} is given twice; remove one")
    steps = [(profile.lines, profile.rule) for profile in chosen.values()]
    own_source = storage.read_bytes(own_file) if own_file else b""
    own = own_functions(own_file, own_source) if own_file else {}
    available = {name: read_profile(name) for name in data_names("filters")}
    published = {rule.name: rule for profile in available.values() for rule in profile.rule}
    for name in own:
        if name in (*published, *OTHER_REASONS):
            raise UsageError(f"{own_file}: {name} is already the name of a rule or reason; rename the function")
    added = []
    for name in further:
        check_known(name, [*own, *published], "rule", "--rule")
        rule = _own_rule(name, own[name]) if name in own else published[name]
        if rule.statistic in LINE_STATISTICS:
            raise UsageError(f"--rule {name}: is computed while lines are removed; use its profile with --profile")
        if rule in added or any(rule in rules for _, rules in steps):
            raise UsageError(f"--rule {name}: is already a rule of this run; omit it")
        added.append(rule)
    if not set(further) & own.keys():
        added += [_own_rule(name, function) for name, function in own.items()]
    steps.append((None, tuple(added)))
    statistics: dict[str, str] = {}
    for rule in (rule for _, rules in steps for rule in rules):
        if (other := statistics.setdefault(rule.name, rule.statistic)) != rule.statistic:
            both = f"{other} and {rule.statistic}"
            raise UsageError(f"rule {rule.name}: two profiles have a rule of this name, for {both}; rename one")
    changed: dict[str, float | None] = {}
    for threshold in thresholds:
        name, _, value = threshold.partition("=")
        try:
            bound = None if value == "off" else float(value)
        except ValueError as error:
            raise UsageError(f"--set {threshold}: is neither RULE=NUMBER nor RULE=off") from error
        check_known(name, [*(statistics | published)], "rule", "--set")
        if name not in statistics:
            raise UsageError(f"--set {threshold}: no profile of this run has a rule {name}; add it with --rule")
        if name in changed:
            raise UsageError(f"--set {threshold}: {name} is set twice; remove one")
        changed[name] = bound
    steps = [(lines, tuple(_changed(rules, changed))) for lines, rules in steps]
    return RuleSet(tuple(steps), own_file, own_source, msgspec.json.encode(available | chosen, order="deterministic"))


def read_profile(name: str) -> Profile:
    """Read a profile of `data/filters/` by name, or a TOML file; raise UsageError if it is invalid."""
    if not name.endswith(".toml"):
        check_known(name, data_names("filters"), "profile", "--profile")
    return read_toml(name if name.endswith(".toml") else data_path(f"filters/{name}.toml"), Profile)


@functools.cache
def own_functions(path: str, source: bytes) -> Mapping[str, Callable[[Document], Any]]:
    """Return the public functions that a Python file defines; raise InputError if it cannot be run."""
    module = types.ModuleType("<rules>")
    module.__file__ = path
    sys.modules[module.__name__] = module  # where dataclasses look for it
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for results
            exec(compile(source, path, "exec", dont_inherit=True), vars(module))
    except (SyntaxError, ValueError) as error:
        raise InputError(f"{path}: is not Python ({error}); rules of TOML are named by --profile") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{path}: cannot be run ({type(error).__name__}: {error})") from error
    functions = {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isfunction(value) and value.__module__ == module.__name__
    }
    if not functions:
        raise InputError(f"{path}: defines no functions; write one per rule")
    return functions


def _own_rule(name: str, function: Any) -> Rule:
    low, high = getattr(function, "min", None), getattr(function, "max", None)
    if low is None and high is None:
        high = 0.0  # what is true is dropped
    if low is not None and high is not None:
        raise UsageError(f"--rules: {name} has both a min and a max; write two functions")
    return Rule(name, f"{_OWN}{name}", low, high, "own")


def _changed(rules: Sequence[Rule], changed: Mapping[str, float | None]) -> list[Rule]:
    kept = []
    for rule in rules:
        bound = changed.get(rule.name, rule.bound)
        if bound is not None:
            if not isinstance(bound, int | float) or not math.isfinite(bound):
                raise UsageError(f"rule {rule.name}: its threshold is {bound!r}, which is not a finite number")
            side = "max" if rule.min is None else "min"
            kept.append(msgspec.structs.replace(rule, **{side: bound}))
    return kept
