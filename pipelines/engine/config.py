"""TOML files, whose values are checked by type; and a stage's config, filled from a table of `webtext.toml` and flags.

A config is one frozen dataclass. A field declared with `option` carries its help, bounds and choices. The command line,
the `webtext.toml` that `webtext init` writes, and the reference are generated from these fields, so that they cannot
disagree.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import json
import math
import re
import tomllib
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from pipelines import storage
from pipelines.errors import UsageError
from pipelines.format import format_number, mask_credentials, suggest_nearest

CONFIG_FILE = "webtext.toml"
# tomllib takes quadratic time for the parts of a key (minutes for 100 KB), and memory for each of its parents.
_LONG_KEY = re.compile(rb"""(?<![\w"'-])(?:[\w"'-]++[ \t]*+\.[ \t]*+){50}""")
_WORDS = {"int": "a whole number", "float": "a number", "str": "a string", "bool": "true or false"}
_WORDS |= {"array": "a list", "object": "a table", "date": "a day", ">=": "that is finite", "<=": "that is finite"}
_WORDS |= {"matching": "of lower-case letters, digits and _, a letter first"}
# The group of the options that describe the input and the output.
INPUT_OUTPUT = "Input and output"
Config = TypeVar("Config")
Tables = dict[str, dict[str, Any]]
# Returns where keys are set, for messages.
Where = Callable[[Sequence[str | int]], str]


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
    minimum: float = -math.inf
    maximum: float = math.inf
    example: Any = None
    only_with: str | None = None
    group: str = ""


def option(default: Any, help: str, **properties: Any) -> Any:
    """Declare a field of a config dataclass with the properties of `OptionSpec`."""
    return dataclasses.field(default=default, metadata={"option": OptionSpec(help, **properties)})


def spec_of(field: dataclasses.Field[Any]) -> OptionSpec:
    """Return the `OptionSpec` of a field declared with `option`."""
    spec: OptionSpec = field.metadata["option"]
    return spec


def option_fields(config_type: type[Any]) -> list[dataclasses.Field[Any]]:
    """Return the fields of a config in the order in which they are shown."""
    return sorted(dataclasses.fields(config_type), key=lambda field: spec_of(field).group == INPUT_OUTPUT)


def identity_of(config: Any) -> dict[str, Any]:
    """Return the values that determine the result, as JSON values; another password of a URL is not another result."""
    options = [field.name for field in dataclasses.fields(config) if spec_of(field).identity]
    values: dict[str, Any] = json.loads(mask_credentials(json.dumps({name: getattr(config, name) for name in options})))
    return values


def read_toml(path: str, kind: type[Config]) -> Config:
    """Return the content of a TOML file as a type, such as `Tables`; raise UsageError if it is not valid."""
    data = storage.read_bytes(path)
    if _LONG_KEY.search(data):
        raise UsageError(f"{path}: has a key of more than 50 parts; remove it")
    try:
        parsed = tomllib.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is not valid TOML ({error})") from error
    return convert(parsed, kind, places(path))


def convert(value: Any, kind: type[Config], where: Where, keys: Sequence[str | int] = ()) -> Config:
    """Return the value at `keys` of a TOML file as a type: a struct, a mapping, or that of a single value.

    Raises UsageError, with its table, for an unknown or missing key, for a value of the wrong type or range,
    and for what the type of a table refuses with ValueError.
    """
    if typing.get_origin(kind) is dict and isinstance(value, dict):  # msgspec does not name the keys of mappings
        item_kind = typing.get_args(kind)[1]
        items = {key: convert(item, item_kind, where, (*keys, key)) for key, item in value.items()}
        return typing.cast(Config, items)
    try:
        return msgspec.convert(value, kind, builtin_types=(dt.date,), dec_hook=lambda _, value: compile_pattern(value))
    except msgspec.ValidationError as error:
        message, _, place = str(error).partition(" - at `$")
        for key, index in re.findall(r"\.(\w+)|\[(\d+)\]", place.partition("[...]")[0]):
            if index and not isinstance(value[int(index)], dict):
                break  # an item of a list
            keys = (*keys, key or int(index))
            value = value[keys[-1]]
        if isinstance(value, dict) and not message.startswith("Expected"):  # a table of which some key is wrong
            key = next(iter(value), "") if keys else ""
            if unknown := re.fullmatch("Object contains unknown field `(.*)`", message):
                key, schemas = unknown[1], msgspec.json.schema_components([kind], schema_hook=lambda _: {"x": 0})[1]
                known = {name for schema in schemas.values() for name in schema["properties"]}
                message += f"; {suggest_nearest(key, known, 'remove it')}"
            raise UsageError(f"{where((*keys, key))}: {message.removeprefix('Object ')}") from error
        message = message[0].lower() + message[1:].partition(", got")[0] + "; write [[rule]]" * (keys[-1] == "rule")
        unclear = r"`(.*?)`|[<>]= -?1e\+300|matching regex '\^\[a-z\]\[.*"
        words = re.sub(unclear, lambda found: _WORDS.get((found[1] or found[0]).split()[0], found[1]), message)
        shown = str(value).lower() if isinstance(value, bool | dt.date | dt.time) else repr(value)
        raise UsageError(f"{where(keys)}: {keys[-1]} = {shown}: {words}") from error


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return a regular expression, which ignores case; raise ValueError if it is not valid."""
    try:
        return re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"not a regular expression ({error})") from error


def places(path: str, *table: str) -> Where:
    """Return the function that says where a TOML file sets the keys of a table: `webtext.toml [scrape]`."""

    def place(keys: Sequence[str | int]) -> str:
        tables = (*table, *keys)[:-1]
        name = "".join(f" {key + 1}" if isinstance(key, int) else f".{key}" for key in tables)[1:]
        return path + (f" [{name}]" if name else "")

    return place


def describe_range(minimum: float, maximum: float) -> str:
    """Return the limits of a number in words, empty if they are infinite."""
    limits = {"at least": minimum, "at most": maximum}
    return " and ".join(f"{word} {format_number(limit, 6)}" for word, limit in limits.items() if math.isfinite(limit))


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
    where: Where,
    other_keys: Sequence[str] = (),
) -> Config:
    """Build a config from a TOML table, overridden by command-line flags, which the command line has checked.

    `where` returns where keys are set. `other_keys` are keys that the table may have in addition to the options.
    Raises UsageError for an unknown key (naming the nearest known one) and for a value of the wrong type or range.
    """
    fields = {field.name: field for field in option_fields(config_type)}
    kinds, values = typing.get_type_hints(config_type), dict(flags)
    for key, value in table.items():
        if (name := key.replace("-", "_")) not in fields and key not in other_keys:
            names = [option.replace("_", "-") if "-" in key else option for option in fields]
            check_known(key, [*other_keys, *names], "option", where([key]))
        if name in fields and name not in flags:
            values[name] = _checked(fields[name], kinds[name], value, where, key)
    for name, field in fields.items():
        if field.default is dataclasses.MISSING and name not in values:
            raise UsageError(f"{where([name])}: has no {name}; add it")
    config = config_type(**values)
    check_effects(config, lambda name: None if name in flags else where([name]))
    return config


def check_effects(config: Any, where: Callable[[str], str | None] | None = None) -> None:
    """Raise UsageError for an option that is set although it has no effect without another one.

    `where` returns where an option is set, None for a flag.
    """
    for field in dataclasses.fields(config):
        other, _, choices = (spec_of(field).only_with or "").partition("=")
        if not other or getattr(config, field.name) == field.default:
            continue
        value = getattr(config, other)
        chosen = value if isinstance(value, tuple) else (value,)
        if not (any(item in choices.split("|") for item in chosen) if choices else value):
            source = where(field.name) if where else type(config).__name__
            name, sign, start = field.name, " = ", f"{source}: "
            if source is None:
                name, other, sign, start = flag_of(name), flag_of(other), " ", ""
            wanted = sign.join(filter(None, (other, choices.replace("|", " or "))))
            raise UsageError(f"{start}{name} has no effect without {wanted}; set {other} or omit {name}")


def flag_of(name: str) -> str:
    """Return the flag of an option: `--min-score` for `min_score`."""
    return "--" + name.replace("_", "-")


def _checked(field: dataclasses.Field[Any], kind: Any, value: Any, where: Where, key: str) -> Any:
    """Convert a value to the type of its field; raise UsageError if it does not fit."""
    spec, problem = spec_of(field), ""
    # TOML reads an unquoted 2017-12-31 as a date.
    converted = convert(value.isoformat() if isinstance(value, dt.date) else value, kind, where, [key])
    for item in converted if isinstance(converted, tuple) else (converted,):
        if spec.choices and item not in spec.choices and item is not None:
            problem = describe_choices(item, spec.choices)
        elif isinstance(item, int | float) and not abs(item) < (2**63 if isinstance(item, int) else math.inf):
            problem = "is not a finite number of 64 bits"
        elif isinstance(item, int | float) and not spec.minimum <= item <= spec.maximum:
            problem = f"must be {describe_range(spec.minimum, spec.maximum)}"
        if problem:
            raise UsageError(f"{where([key])}: {key} = {item!r} {problem}")
    return converted
