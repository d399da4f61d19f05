"""The wishes of owners that a user names with `--honor`, and the user agents of AI in `data/ai-agents.toml`."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

from pipelines.algorithms.web.signals import KINDS
from pipelines.engine.config import check_known, read_toml
from pipelines.errors import UsageError
from pipelines.storage.resources import data_path

HONOR_HELP = f"Drop pages whose owner wishes it: {', '.join(KINDS)}:AGENT (robots.txt for it), ai (for any AI agent)."

# What may follow the name of a signal, which the pattern also matches alone, and how it reads in a message.
_DIRECTIVE = r"(:(header|meta)(:[\w*.-]+)?)?", "header, meta, header:AGENT or meta:AGENT"
_PREFERENCE = r"(:[a-z0-9_*.-]+=no?)?", "what is refused, such as train-ai=n"
_FORMS = dict.fromkeys(KINDS[:4], _DIRECTIVE) | dict.fromkeys(KINDS[5:7], _PREFERENCE)
_FORMS[KINDS[4]] = r"(:(header|meta|file))?", "header, meta or file"


class Honor(NamedTuple):
    """The honored signals, or beginnings of signals; all user agents to look up, and those honored in robots.txt."""

    names: tuple[str, ...]
    agents: tuple[str, ...]
    robots_agents: tuple[str, ...]

    def find(self, signals: Iterable[str]) -> tuple[str, str] | None:
        """Return the drop reason, such as `tdm_reservation`, and the signal for the first one that is honored."""
        honored = (signal for signal in signals if any(f"{signal}:".startswith(f"{name}:") for name in self.names))
        return next(((signal.partition(":")[0].replace("-", "_"), signal) for signal in honored), None)


@functools.cache
def read_honor(values: tuple[str, ...]) -> Honor:
    """Return what the values of `--honor` name, each one signal or several with commas.

    Raises UsageError for an unknown signal, naming the nearest known one, and for one that no page can have.
    """
    table = read_toml(data_path("ai-agents.toml"), dict[str, dict[str, str]])["agents"]
    known, names, honored = {agent.lower(): agent for agent in table}, list[str](), list[str]()
    for name in filter(None, (part.strip() for value in values for part in value.split(","))):
        kind, _, agent = name.partition(":")
        check_known(kind, [*KINDS, "ai"], "signal", "--honor")
        if kind in ("robots", "ai"):
            honored += [known.get(agent.lower(), agent)] if agent else table
            continue
        pattern, forms = _FORMS[kind]
        if not re.fullmatch(pattern, name.removeprefix(kind)):
            raise UsageError(f"--honor {name}: is not a signal; after {kind}: use {forms}")
        place, _, agent = name.rpartition(":")
        names.append(f"{place}:{known[agent.lower()]}" if agent.lower() in known else name)
    named = [name.split(":")[2] for name in names if name.count(":") == 2]
    agents = dict.fromkeys(["*", *table, *honored, *named])
    return Honor((*names, *(f"robots:{agent}" for agent in honored)), tuple(agents), tuple(honored))
