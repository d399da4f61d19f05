"""A stage's config: one frozen dataclass, filled from a table of `webtext.toml`, then from flags.

A field declared with `option` carries its help, bounds and choices. The command line, the `webtext.toml` that
`webtext init` writes, and the reference are generated from these fields, so that they cannot disagree.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import re
import tomllib
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from pipelines import storage
from pipelines.errors import UsageError
from pipelines.format import mask_credentials, suggest_nearest

CONFIG_FILE = "webtext.toml"
# tomllib takes quadratic time for the parts of a key (minutes for 100 KB), and memory for each of its parents.
_LONG_KEY = re.compile(rb"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){50}""")
# The group of the options that describe the input and the output.
INPUT_OUTPUT = "Input and output"
Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class OptionSpec:
    """The properties of an option other than its type and default.

    `identity` is False for options that do not change the result, such as those of speed and politeness. `example` is
    the value to show if there is no default. `only_with` names the option without which this one has no effect; with
    `=`, also the values that the other one must have: `archive` or `source=dump|praw`. `group` is the
    heading of the option and of those that follow it in the help; the options of `INPUT_OUTPUT`, which several stages
    inherit, are listed after the others.
    """

    help: str
    identity: bool = True
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    example: Any = None
    only_with: str | None = None
    group: str = ""


def option(default: Any, help: str, **properties: Any) -> Any:
    """Declare a field of a config dataclass with the properties of `OptionSpec`."""
    return dataclasses.field(default=default, metadata={"option": OptionSpec(help, **properties)})


def spec_of(field: dataclasses.Field[Any]) -> OptionSpec:
    """Return the `OptionSpec` of a field declared with `option`."""
    spec = field.metadata["option"]
    assert isinstance(spec, OptionSpec)
    return spec


def option_fields(config_type: type[Any]) -> list[dataclasses.Field[Any]]:
    """Return the fields of a config in the order in which they are shown."""
    return sorted(dataclasses.fields(config_type), key=lambda field: spec_of(field).group == INPUT_OUTPUT)


def identity_of(config: Any) -> dict[str, Any]:
    """Return the values that determine the result, as JSON values; another password of a URL is not another result."""
    options = [field.name for field in dataclasses.fields(config) if spec_of(field).identity]
    values: dict[str, Any] = json.loads(mask_credentials(json.dumps({name: getattr(config, name) for name in options})))
    return values


def read_tables(path: str) -> dict[str, dict[str, Any]]:
    """Return the tables of a TOML file; raise UsageError if it cannot be parsed."""
    data = storage.read_bytes(path)
    if _LONG_KEY.search(data):
        raise UsageError(f"{path}: has a key of more than 50 parts; remove it")
    try:
        parsed = tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: is not valid TOML ({error})") from error
    for name, table in parsed.items():
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {name} is outside any table; move it into one such as [scrape]")
    return parsed


def is_in_range(number: float, minimum: float | None, maximum: float | None) -> bool:
    """Return whether a number is within limits, None if there is none."""
    return (minimum is None or number >= minimum) and (maximum is None or number <= maximum)


def describe_range(minimum: float | None, maximum: float | None) -> str:
    """Return the limits of a number in words, empty without limits."""
    limits = {"at least": minimum, "at most": maximum}
    numbers = {word: number for word, number in limits.items() if number is not None}
    return " and ".join(
        f"{word} {number:,}" if isinstance(number, int) else f"{word} {number:g}" for word, number in numbers.items()
    )


def describe_choices(value: str, choices: Sequence[str]) -> str:
    """Return what is wrong with a value that is not one of the choices, with the nearest one."""
    hint = suggest_nearest(value, choices, "")
    return f"is not one of {', '.join(choices)}{hint and '; '}{hint}"


def check_known(name: str, known: Sequence[str], what: str, where: str) -> None:
    """Raise UsageError for an unknown name, naming the nearest known one."""
    if name in known:
        return
    abbreviated = [key for key in known if name == "".join(word[:1] for word in key.split("_"))]
    hint = suggest_nearest((abbreviated or [name])[0], known, f"known: {', '.join(known)}")
    is_flag = where.startswith("--") and " " not in where
    shown = f"{where} {name}: unknown {what}" if is_flag else f"{where}: unknown {what} {name!r}"
    raise UsageError(f"{shown}; {hint}")


def make_config(
    config_type: type[Config],
    table: Mapping[str, Any],
    flags: Mapping[str, Any],
    where: str,
    other_keys: Sequence[str] = (),
) -> Config:
    """Build a config from a TOML table, overridden by command-line flags, which the command line has checked.

    `other_keys` are keys that the table may have in addition to the options; they are suggested for a mistyped key.
    Raises UsageError for an unknown key (naming the nearest known one) and for a value of the wrong type or range.
    """
    fields = {field.name: field for field in option_fields(config_type)}
    for key in table:
        names = [*other_keys, *fields]
        check_known(key, names if "-" not in key else [name.replace("_", "-") for name in names], "option", where)
    kinds, values = typing.get_type_hints(config_type), dict(flags)
    for key, value in table.items():
        if (name := key.replace("-", "_")) not in flags:
            values[name] = _checked(fields[name], kinds[name], value, f"{where}: {key}")
    config = config_type(**values)
    check_effects(config, {name: None if name in flags else where for name in values})
    return config


def check_effects(config: Any, sources: Mapping[str, str | None]) -> None:
    """Raise UsageError for an option that is set although it has no effect without another one.

    `sources` is where the options are set, by name; None for a flag.
    """
    for field in dataclasses.fields(config):
        other, _, choices = (spec_of(field).only_with or "").partition("=")
        if not other or getattr(config, field.name) == field.default:
            continue
        value = getattr(config, other)
        chosen = value if isinstance(value, tuple) else (value,)
        if not (any(item in choices.split("|") for item in chosen) if choices else value):
            source = sources.get(field.name, type(config).__name__)
            name, sign, start = field.name, " = ", f"{source}: "
            if source is None:
                name, other, sign, start = flag_of(name), flag_of(other), " ", ""
            wanted = sign.join(filter(None, (other, choices.replace("|", " or "))))
            raise UsageError(f"{start}{name} has no effect without {wanted}; set {other} or omit {name}")


def flag_of(name: str) -> str:
    """Return the flag of an option: `--min-score` for `min_score`."""
    return "--" + name.replace("_", "-")


def _checked(field: dataclasses.Field[Any], kind: Any, value: Any, where: str) -> Any:
    """Convert a value to the type of its field; raise UsageError if it does not fit."""
    spec = spec_of(field)
    try:
        # TOML reads an unquoted 2017-12-31 as a date.
        converted = msgspec.convert(value.isoformat() if isinstance(value, dt.date) else value, kind)
    except msgspec.ValidationError:
        raise UsageError(f"{where} = {value!r} is not {_kind_in_words(kind)}") from None
    if isinstance(converted, float) and not math.isfinite(converted):
        raise UsageError(f"{where} = {value!r} is not a finite number")
    for item in converted if isinstance(converted, tuple) else (converted,):
        if spec.choices and item not in spec.choices and item is not None:
            raise UsageError(f"{where} = {item!r} {describe_choices(item, spec.choices)}")
        if isinstance(item, int | float) and not is_in_range(item, spec.minimum, spec.maximum):
            raise UsageError(f"{where} = {item!r} must be {describe_range(spec.minimum, spec.maximum)}")
    return converted


def _kind_in_words(kind: Any) -> str:
    kinds = {"int": "a whole number", "float": "a number", "str": "a string", "bool": "true or false"}
    name = kind.__name__ if isinstance(kind, type) else str(kind).removesuffix(" | None")
    return kinds.get(name, "a list of strings")
