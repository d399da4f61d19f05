"""The pages of a release, as other programs read them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipelines.engine.run import RunOptions
from pipelines.records import shards
from pipelines.release.config import ReleaseConfig
from pipelines.release.files import _PUBLISHED, write_published
from pipelines.release.stage import release
from webtext_cli.main import main

_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
_needs = {
    name: pytest.mark.skipif(
        importlib.util.find_spec(name) is None, reason=f"needs the package {name}: pip install {name}"
    )
    for name in ("datasets", "mlcroissant")
}


@pytest.fixture(scope="module")
def output(built_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("releases") / "pages"
    config = ReleaseConfig(license="ODC-By-1.0", texts=True, name='A "corpus" & <more>', creator="Example | University")
    release(config, corpus=str(built_corpus), output=str(folder), options=RunOptions())
    return folder


def _front_matter(output: Path) -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    parsed: dict[str, Any] = yaml.safe_load((output / "README.md").read_text().split("---\n")[1])
    return parsed


def test_the_card_describes_the_files(output: Path) -> None:
    card = _front_matter(output)
    assert card["pretty_name"] == 'A "corpus" & <more>'
    assert (card["license"], card["language"], card["size_categories"]) == ("odc-by", ["en"], ["n<1K"])
    assert card["configs"][0] == {"config_name": "documents", "data_files": "data/*.parquet", "default": True}
    for info in card["dataset_info"]:
        folder = {"documents": "data"}.get(info["config_name"], info["config_name"])
        tables = [pq.read_table(path) for path in (output / folder).glob("*.parquet")]
        assert [feature["name"] for feature in info["features"]] == tables[0].schema.names
        assert info["splits"][0]["num_examples"] == sum(table.num_rows for table in tables)


def test_documents_are_shown_of_its_folder_of_texts(output: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "--limit", "1", "-i", str(output)]) == 1
    assert "is the output of release, expected scrape or fetch" in (message := capsys.readouterr().err)
    assert message.endswith(f"; its texts are in {output / 'data'}\n")
    assert main(["show", "--limit", "1", "-i", str(output / "data")]) == 0


def test_the_card_has_the_funnel_and_escapes_what_is_not_its_own(output: Path) -> None:
    card = (output / "README.md").read_text()
    manifest = json.loads((output / "release.json").read_text())["stages"]
    for name, stage in manifest.items():
        assert f"| {name} (version {stage['version']}) | {stage['records_in']:,} |" in card
    assert "# A &#34;corpus&#34; &amp; &lt;more&gt; 1.0.0" in card


def test_another_license_is_named_with_its_address(built_corpus: Path, tmp_path: Path) -> None:
    config = ReleaseConfig(license="https://example.org/terms")
    release(config, corpus=str(built_corpus), output=str(tmp_path / "out"), options=RunOptions())
    card = _front_matter(tmp_path / "out")
    assert card["license"] == "other"
    assert card["license_name"] == card["license_link"] == "https://example.org/terms"


def test_croissant_has_what_the_format_requires(output: Path) -> None:
    croissant = json.loads((output / "croissant.json").read_text())
    required = "@context @type conformsTo name description license url creator datePublished distribution".split()
    assert [name for name in required if not croissant.get(name)] == []
    assert croissant["conformsTo"][0] == "http://mlcommons.org/croissant/1.1"
    assert croissant["license"] == "https://spdx.org/licenses/ODC-By-1.0.html"
    assert croissant["name"] == 'A "corpus" & <more>'
    assert [activity["@id"] for activity in croissant["prov:wasGeneratedBy"]][:2] == ["#scrape", "#fetch"]
    assert len(croissant["rai:dataCollectionTimeframe"]) == 2
    assert {name for name in croissant if name.startswith("rai:")} >= {
        "rai:personalSensitiveInformation", "rai:dataReleaseMaintenancePlan",
    }  # fmt: skip


def test_the_summary_lists_the_largest_domains(output: Path) -> None:
    summary = (output / "training-summary.md").read_text()
    documents = [row for path in (output / "data").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
    assert f"Domains by volume: 1 of {len({row['domain'] for row in documents})}" in summary
    assert "| Behaviour | robots.txt is obeyed" in summary


@_needs["datasets"]
def test_datasets_loads_a_release_offline(output: Path, tmp_path: Path) -> None:
    code = (
        "import sys, datasets\n"
        "for name in datasets.get_dataset_config_names(sys.argv[1]):\n"
        "    print(name, datasets.load_dataset(sys.argv[1], name, split='train').num_rows)\n"
    )
    environment = {**os.environ, **_OFFLINE, "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code, output], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["documents", "urls"]
    assert "Ignoring" not in done.stderr


@_needs["mlcroissant"]
def test_croissant_validates(output: Path) -> None:
    code = (
        "import sys, mlcroissant\n"
        "data = mlcroissant.Dataset(sys.argv[1] + '/croissant.json')\n"
        "assert not data.metadata.ctx.issues.errors and not data.metadata.ctx.issues.warnings\n"
        "print([len(list(data.records(name))) for name in ('documents', 'urls')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code, output], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    card = [info["splits"][0]["num_examples"] for info in _front_matter(output)["dataset_info"]]
    assert json.loads(done.stdout) == card


def test_a_removed_row_changes_its_row_group_only(tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.string()), ("text", pa.string())])
    rows = [{"id": f"{number:032x}", "text": f"text {number} " * 20} for number in range(20_000)]
    groups = []
    for name, kept in (("all", rows), ("fewer", [row for row in rows if row["id"] != rows[9000]["id"]])):
        with shards.write_shard(str(tmp_path), f"{name}.parquet", schema, **_PUBLISHED) as writer:
            for start in range(0, len(kept), 700):
                write_published(writer, pa.RecordBatch.from_pylist(kept[start : start + 700], schema=schema))
        groups.append(_row_groups(tmp_path / f"{name}.parquet"))
    assert len(groups[0]) > 10
    assert len({*groups[0]} - {*groups[1]}) == 1
    assert pq.read_table(tmp_path / "all.parquet").to_pylist() == rows


def _row_groups(path: Path) -> list[bytes]:
    """Return the bytes of each row group."""
    metadata, data = pq.read_metadata(path), path.read_bytes()
    starts = [
        min(filter(None, (column.dictionary_page_offset, column.data_page_offset)))
        for column in (metadata.row_group(number).column(0) for number in range(metadata.num_row_groups))
    ]
    sizes = [
        sum(metadata.row_group(number).column(index).total_compressed_size for index in range(metadata.num_columns))
        for number in range(metadata.num_row_groups)
    ]
    return [data[start : start + size] for start, size in zip(starts, sizes, strict=True)]
