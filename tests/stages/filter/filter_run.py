"""Documents for tests of `webtext filter`, and a run of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipelines.engine.executor import make_executor
from pipelines.engine.run import RunOptions
from pipelines.stages.filter.config import FilterConfig
from pipelines.stages.filter.stage import filter as filter_documents

PROSE = (
    "The cat of the house sat on the mat, and it was warm there. Nobody knew that the dog would be back so soon. "
    "They have to share the place with each other, which is not easy. It rained all day, so both stayed inside. "
    "In the evening the sun came out! Would they go for a walk together? They did, and were friends from then on."
)
GERMAN = (
    "Die Katze des Hauses saß auf der Matte, und es war warm dort. Niemand wusste, dass der Hund so bald zurück sein "
    "würde. Sie müssen sich den Platz teilen, was nicht einfach ist. Es regnete den ganzen Tag, und beide blieben drin."
)
TEXTS = {
    "prose": PROSE,
    "short": "Too short.",
    "numbers": "12.50 13.75 100 200 | 14 15 16 --- " * 20,
    "damaged": "caf\u00c3\u00a9 na\u00c3\u00afve \ufffd \u00e2\u20ac\u2122 words " * 10 + PROSE,
    "repeated": "Buy our very good product now, it is the best of all, they say. \n" * 20,
    "german": GERMAN,
    "lines": f"Home | About us\n{PROSE}\nread more\nPlease enable javascript to see this page in full.",
    "bracket": f"{PROSE}\nIt has a function {{ return 1; }} in it, and ends well.",
}


def write_documents(tmp_path: Path) -> str:
    """Write the documents and return the path."""
    path = tmp_path / "docs.parquet"
    urls = [f"http://a.org/{name}" for name in TEXTS]
    pq.write_table(pa.table({"id": list(TEXTS), "url": urls, "text": list(TEXTS.values()), "score": range(8)}), path)
    return str(path)


def options() -> RunOptions:
    """Return the options of a run."""
    return RunOptions(executor=make_executor(1))


def run(documents: str | list[str], tmp_path: Path, **config: Any) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return the kept rows by id, and the reasons of the dropped."""
    files = {name: config.pop(name) for name in ("rules", "quality_model") if name in config}
    output = str(tmp_path / "filter")
    filter_documents(FilterConfig(**config), documents=documents, output=output, options=options(), **files)
    kept = pq.read_table(Path(output, "documents-00000.parquet")).to_pylist()
    dropped = pq.read_table(Path(output, "dropped-00000.parquet")).to_pylist()
    return {row["id"]: row for row in kept}, {row["id"]: f"{row['reason']}: {row['detail']}" for row in dropped}
