"""Signs in a text that it is a copy of a Wikipedia article: notices and links that such copies keep."""

from __future__ import annotations

import itertools
import re
import tomllib
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from pipelines import storage
from pipelines.records.document_filter import DropReason


class MirrorSigns(NamedTuple):
    """Names, patterns, minimum occurrences and weights of signs; from `min_weight` on, a text is a copy."""

    signs: tuple[tuple[str, re.Pattern[str], int, int], ...]
    min_weight: int

    def drop_reasons(self, texts: pa.StringArray) -> list[DropReason | None]:
        """Return the reason to drop each text that is a copy; a text without the word Wikipedia is not."""
        reasons: list[DropReason | None] = [None] * len(texts)
        for row in pc.indices_nonzero(pc.match_substring(texts, "ikipedia")).to_pylist():
            text = texts[row].as_py()
            present = {
                name: weight
                for name, pattern, occurrences, weight in self.signs
                if sum(1 for _ in itertools.islice(pattern.finditer(text), occurrences)) == occurrences
            }
            if sum(present.values()) >= self.min_weight:
                reasons[row] = DropReason("wikipedia_mirror_text", ", ".join(present))
        return reasons


def read_mirror_signs(path: str) -> MirrorSigns:
    """Read the signs of a TOML file."""
    table = tomllib.loads(storage.read_bytes(path).decode())
    signs = (
        (sign["name"], re.compile(sign["pattern"], re.IGNORECASE), sign.get("count", 1), sign.get("weight", 1))
        for sign in table["sign"]
    )
    return MirrorSigns(tuple(signs), table["min_weight"])
