"""The data card of a folder with documents, by which `datasets.load_dataset` knows which of the files to load."""

from __future__ import annotations

from pipelines.engine.stage import TaskResult
from pipelines.records.shards import write_file

DATA_CARD = "README.md"

_CARD = """---
configs:
- config_name: default
  default: true
  data_files:
  - split: train
    path: documents-*.parquet
---

# Documents of webtext {stage}

`datasets.load_dataset` and the Hugging Face Hub load `documents-*.parquet`; the other files tell what was dropped, and
why. `manifest.json` has the options, the number of records, and the checksum of every file. `id` identifies a document,
`text` is its text; the other columns are described in docs/formats.md of webtext.
"""


def write_data_card(folder: str, stage: str) -> TaskResult:
    """Write the data card into the output folder of a stage, and return it as the result of a task."""
    return TaskResult(files=(write_file(folder, DATA_CARD, _CARD.format(stage=stage).encode()),))
