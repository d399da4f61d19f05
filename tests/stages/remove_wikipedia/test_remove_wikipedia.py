from __future__ import annotations

import gzip
import json
import tomllib
from pathlib import Path

import lxml.html
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from pipelines.algorithms.web.urls import registered_domain
from pipelines.engine.config import read_toml
from pipelines.engine.executor import make_executor
from pipelines.engine.run import RunOptions
from pipelines.errors import ChangedRunError, UsageError
from pipelines.progress import Silent
from pipelines.records.schemas import DOCUMENT_SCHEMA
from pipelines.stages.remove_wikipedia.config import RemoveWikipediaConfig
from pipelines.stages.remove_wikipedia.stage import MirrorSigns, remove_wikipedia
from pipelines.storage.resources import data_path
from webtext_cli.commands.remove_wikipedia import command

pytestmark = pytest.mark.usefixtures("warm_processes")

WIKIPEDIA = [
    "https://en.wikipedia.org/wiki/River",
    "http://wikipedia.org",
    "https://de.m.wikipedia.org/wiki/Fluss",
    "HTTP://EN.WIKIPEDIA.ORG:80/wiki/River",
    "https://en.wikipedia.org./wiki/River",
    "https://user@en.wikipedia.org/wiki/River",
    "https://secure.wikimedia.org/wikipedia/en/wiki/River",
    "https://www.wikiwand.com/en/River",
    "http://en.wikipedia-on-ipfs.org/wiki/River",
    "http://wapedia.mobi/en/River",
    "https://web.archive.org/web/20100101000000/http://en.wikipedia.org/wiki/River",
    "http://web.archive.org/web/2010id_/https:/en.wikipedia.org/wiki/River",
    "http://web.archive.org/web/2010/en.wikipedia.org/wiki/River",
]
OTHERS = [
    "https://notwikipedia.org/wiki/River",
    "https://wikipedia.org.example.com/wiki/River",
    "https://example.com/https://en.wikipedia.org/wiki/River",
    "https://example.com/?from=wikipedia.org",
    "https://en.wiktionary.org/wiki/river",
    "https://wikipedia.example.org@example.net/",
    "https://web.archive.org/web/2010/http://example.com/",
    "https://web.archive.org/about/",
    "http://192.0.2.1/wiki/River",
    "not a url",
    "",
]


def write_documents(folder: Path, urls_by_shard: list[list[str | None]]) -> Path:
    folder.mkdir(exist_ok=True)
    for index, urls in enumerate(urls_by_shard):
        rows = [
            {"id": f"{index}-{row}", "url": url, "text": f"text {row}", "score": row} for row, url in enumerate(urls)
        ]
        pq.write_table(pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA), folder / f"part-{index}.parquet")
    return folder


def test_the_text_is_the_column_text_of_the_output_whatever_the_input_calls_it(tmp_path: Path) -> None:
    pq.write_table(pa.table({"content": ["one"], "url": ["http://a.com/"]}), tmp_path / "in.parquet")
    run([tmp_path / "in.parquet"], tmp_path / "first", text_field="content")
    run(tmp_path / "first", tmp_path / "second", text_field="content")
    (row,) = pq.read_table(tmp_path / "second" / "documents-00000.parquet").to_pylist()
    assert row == {"id": "in.parquet:0", "text": "one", "url": "http://a.com/", "domain": "a.com"}


class NotedProgress(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


def run(documents, output: Path, workers: int = 1, domains_file: str | None = None, options=None, **settings):
    paths = [str(path) for path in documents] if isinstance(documents, list) else str(documents)
    return remove_wikipedia(
        RemoveWikipediaConfig(**settings),
        documents=paths,
        output=str(output),
        options=options or RunOptions(make_executor(workers)),
        domains_file=domains_file,
    )


def rows(folder: Path, noun: str) -> list[dict[str, object]]:
    return [row for path in sorted(folder.glob(f"{noun}-*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_wikipedia_is_dropped_under_all_domains_and_the_rest_is_unchanged(tmp_path):
    documents = write_documents(tmp_path / "in", [WIKIPEDIA, [*OTHERS, None]])
    summary = run(documents, tmp_path / "out")
    assert (summary.records_in, summary.records_out) == (len(WIKIPEDIA) + len(OTHERS) + 1, len(OTHERS) + 1)
    assert dict(summary.dropped) == {"wikipedia_domain": len(WIKIPEDIA)}
    assert summary.extra["documents_without_url"] == 1
    assert [row["url"] for row in rows(tmp_path / "out", "dropped")] == WIKIPEDIA
    assert {row["detail"] for row in rows(tmp_path / "out", "dropped")} == {
        "wikipedia.org", "wikimedia.org", "wikiwand.com", "wikipedia-on-ipfs.org", "wapedia.mobi",
    }  # fmt: skip
    kept = pq.read_table(documents / "part-1.parquet").to_pylist()
    domains = {row["url"]: row["url"] and registered_domain(row["url"]) for row in kept}
    assert rows(tmp_path / "out", "documents") == [{**row, "domain": domains[row["url"]]} for row in kept]
    assert pq.read_schema(tmp_path / "out" / "documents-00000.parquet").equals(DOCUMENT_SCHEMA)


def test_further_domains_are_removed_and_part_of_the_result(tmp_path):
    documents = write_documents(tmp_path / "in", [["http://en.my-mirror.com/River", "http://other.example/"]])
    assert run(documents, tmp_path / "without").records_out == 2
    summary = run(documents, tmp_path / "with", extra_domain=("My-Mirror.com",))
    assert [row["url"] for row in rows(tmp_path / "with", "documents")] == ["http://other.example/"]
    assert dict(summary.dropped) == {"wikipedia_domain": 1}
    with pytest.raises(ChangedRunError, match="domain was"):
        run(documents, tmp_path / "with")


@pytest.mark.parametrize(
    ("domain", "message"),
    [
        (
            "en.my-mirror.com",
            r"--extra-domain en\.my-mirror\.com: is not a registered domain; did you mean my-mirror\.com\?",
        ),
        ("https://my-mirror.com/wiki", r"did you mean my-mirror\.com\?"),
        ("", "--extra-domain : is not a registered domain"),
    ],
)
def test_a_domain_that_could_match_nothing_is_refused(tmp_path, domain, message):
    with pytest.raises(UsageError, match=message):
        run(write_documents(tmp_path / "in", [["http://a.example/"]]), tmp_path / "out", extra_domain=(domain,))


def test_a_changed_list_changes_the_identity_of_the_result(tmp_path):
    documents = write_documents(tmp_path / "in", [["http://a.example/", "https://en.wikipedia.org/"]])
    run(documents, tmp_path / "out")
    (tmp_path / "domains.txt").write_text("# mirrors\na.example\n\n")
    with pytest.raises(ChangedRunError, match="its input 'domains' has changed"):
        run(documents, tmp_path / "out", domains_file=str(tmp_path / "domains.txt"))
    summary = run(documents, tmp_path / "other", domains_file=str(tmp_path / "domains.txt"))
    assert [row["url"] for row in rows(tmp_path / "other", "dropped")] == ["http://a.example/"]
    assert summary.records_out == 1


def test_the_tracked_list_has_registered_domains_with_a_kind_and_a_source():
    lines = Path(data_path("wikipedia-domains.txt")).read_text().splitlines()
    rows = [line.split(maxsplit=2) for line in lines if line and not line.startswith("#")]
    domains = [domain for domain, _, _ in rows]
    assert domains == list(dict.fromkeys(domains))
    assert all(registered_domain(f"http://{domain}/") == domain for domain in domains)
    assert {kind for _, kind, _ in rows} == {"wikipedia", "sister", "mirror", "fork"}
    assert all(source.startswith("https://") for _, _, source in rows)


def test_sister_projects_are_removed_on_request(tmp_path):
    urls = ["https://en.wiktionary.org/wiki/river", "https://de.wikibooks.org/wiki/Fluss", "http://other.example/"]
    documents = write_documents(tmp_path / "in", [urls])
    assert run(documents, tmp_path / "kept").records_out == 3
    summary = run(documents, tmp_path / "removed", sister_projects=True)
    assert (summary.records_out, dict(summary.dropped)) == (1, {"wikipedia_domain": 2})
    assert {row["detail"] for row in rows(tmp_path / "removed", "dropped")} == {"wiktionary.org", "wikibooks.org"}


MIRROR_TEXTS = {
    "material from the article": "This article uses material from the Wikipedia article River.",
    "GFDL notice": "Licensed under the GNU Free Documentation License. It uses material from the Wikipedia article X.",
    "retrieved from, edit links": 'A [edit]\nB [edit]\nC [ edit ]\nRetrieved from "https://en.wikipedia.org/w/index.php?title=A"',
    "from Wikipedia, the free encyclopedia, jump to navigation": (
        "River\nFrom Wikipedia, the free encyclopedia\nJump to: navigation, search\nA river is"
    ),
    "license notice, last modified": (
        "This page was last modified on 3 May 2010.\nText is available under the Creative Commons "
        "Attribution-ShareAlike License. See Terms of Use. Wikipedia is free."
    ),
}
OTHER_TEXTS = [
    "Wikipedia is an encyclopedia. Wikipedia says so.",
    "As it says there: \n\nFrom Wikipedia, the free encyclopedia\n\nthe word means",
    "Rivers (2004). In Wikipedia. Retrieved July 22, 2004, from http://en.wikipedia.org/wiki/River [edit]",
    'Retrieved from "https://en.wikipedia.org/wiki/River" [edit] [edit]',
    'Our own wiki.\nA [edit]\nB [edit]\nC [edit]\nRetrieved from "https://wiki.example.org/w/index.php?title=A"',
    "This page was last edited on 3 May. Creative Commons Attribution-ShareAlike. We are no encyclopedia.",
]


def write_texts(path: Path, texts: list[str]) -> Path:
    lines = [{"id": str(number), "url": "http://a.example/", "text": text} for number, text in enumerate(texts)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_texts_with_signs_of_a_mirror_are_dropped_and_those_that_mention_wikipedia_stay(tmp_path):
    documents = write_texts(tmp_path / "in.jsonl", [*MIRROR_TEXTS.values(), *OTHER_TEXTS])
    summary = run(documents, tmp_path / "out")
    assert dict(summary.dropped) == {"wikipedia_mirror_text": len(MIRROR_TEXTS)}
    assert [row["detail"] for row in rows(tmp_path / "out", "dropped")] == list(MIRROR_TEXTS)
    assert [row["text"] for row in rows(tmp_path / "out", "documents")] == OTHER_TEXTS


def test_signs_of_mirrors_count_also_with_a_reference_and_are_ignored_on_request(tmp_path):
    documents = write_texts(tmp_path / "in.jsonl", [*MIRROR_TEXTS.values(), *OTHER_TEXTS])
    total = len(MIRROR_TEXTS) + len(OTHER_TEXTS)
    assert run(documents, tmp_path / "without", mirror_text=False).records_out == total
    reference = write_texts(tmp_path / "reference.jsonl", ["a b c d e f g h i"])
    summary = remove_wikipedia(
        RemoveWikipediaConfig(),
        documents=str(documents),
        output=str(tmp_path / "compared"),
        options=RunOptions(),
        reference=[str(reference)],
    )
    assert summary.dropped == {"wikipedia_mirror_text": len(MIRROR_TEXTS)}


def test_every_sign_of_mirrors_has_a_source_and_no_weight_that_decides_alone_but_notices_of_copies():
    table = tomllib.loads(Path(data_path("wikipedia-mirror-signs.toml")).read_text())
    assert all(sign["source"] for sign in table["sign"])
    alone = [sign["name"] for sign in table["sign"] if sign.get("weight", 1) >= table["min_weight"]]
    assert alone == ["material from the article", "GFDL notice"]


@pytest.mark.slow
def test_no_real_page_is_taken_for_a_mirror_but_wikipedia_itself(shared_data):
    signs = read_toml(data_path("wikipedia-mirror-signs.toml"), MirrorSigns)
    dropped, mentions = set(), 0
    for path in sorted((shared_data / "pages" / "wcxb-dev" / "html").glob("*.html.gz")):
        html = gzip.decompress(path.read_bytes())
        if b"ikipedia" in html:
            tree = lxml.html.fromstring(html)
            text = "\n".join(tree.xpath("//body//text()[not(ancestor::script) and not(ancestor::style)]"))
            mentions += "ikipedia" in text
            if signs.drop_reasons(pa.array([text])) != [None]:
                dropped.add(tree.findtext(".//title"))
    assert mentions > 20
    assert dropped
    assert all(title.endswith("- Wikipedia") for title in dropped)


def test_documents_without_a_url_pass_are_counted_and_noted(tmp_path):
    mirror = "This article uses material from the Wikipedia article Thames"
    pq.write_table(pa.table({"text": ["one", mirror]}), tmp_path / "no-column.parquet")
    (tmp_path / "no-field.jsonl").write_text('{"text": "three"}\n')
    write_documents(tmp_path / "nulls", [[None, None, "http://b.example/"]])
    expected = {"no-column.parquet": (1, "2 of 2"), "no-field.jsonl": (1, "1 of 1"), "nulls": (3, "2 of 3")}
    for name, (kept, numbers) in expected.items():
        notes = NotedProgress()
        options = RunOptions(progress=notes)
        summary = run([tmp_path / name], tmp_path / f"out-{name}", options=options)
        assert summary.records_out == kept
        assert notes.notes == [
            f"documents without a URL: {numbers}; their domains were not checked; --reference recognizes copies of "
            "Wikipedia by their text"
        ]
    assert rows(tmp_path / "out-no-column.parquet", "dropped")[0]["reason"] == "wikipedia_mirror_text"


def test_jsonl_is_filtered_and_bad_lines_are_counted(tmp_path):
    lines = [
        {"text": "one", "url": "https://en.wikipedia.org/wiki/A", "tag": 1},
        {"text": "two", "url": "http://b.example/", "tag": 2},
    ]
    (tmp_path / "in.jsonl").write_text("\n".join([json.dumps(lines[0]), "{", json.dumps(lines[1]), '{"url": "x"}']))
    summary = run(tmp_path / "in.jsonl", tmp_path / "out")
    assert (summary.records_in, summary.records_out) == (4, 1)
    assert dict(summary.dropped) == {"bad_json": 1, "missing_text": 1, "wikipedia_domain": 1}
    [kept] = rows(tmp_path / "out", "documents")
    assert (kept["text"], kept["url"], kept["metadata"]) == ("two", "http://b.example/", '{"tag": 2}')


def test_the_bytes_are_the_same_for_one_worker_and_three(tmp_path):
    documents = write_documents(tmp_path / "in", [[url, *OTHERS] for url in WIKIPEDIA[:5]])
    run(documents, tmp_path / "one")
    run(documents, tmp_path / "three", workers=3)
    one, three = ({path.name: path.read_bytes() for path in (tmp_path / name).glob("*.*")} for name in ("one", "three"))
    assert len(one) >= 11
    assert one == three


def test_the_command(tmp_path):
    write_documents(tmp_path / "in", [[*WIKIPEDIA, *OTHERS]])
    arguments = [
        "-i",
        str(tmp_path / "in"),
        "-o",
        str(tmp_path / "out"),
        "--json",
        "-q",
        "--extra-domain",
        "example.com",
    ]
    result = CliRunner().invoke(command, [*arguments, "--workers", "1"])
    assert result.exit_code == 0, result.output
    summary = json.loads(result.output)
    assert summary["dropped"] == {"wikipedia_domain": len(WIKIPEDIA) + 4}


def test_a_shortened_link_is_filtered_by_its_final_url(tmp_path: Path) -> None:
    ends = ["https://en.wikipedia.org/wiki/River", "https://example.com/river", None]
    rows = [{"id": str(n), "url": f"https://bit.ly/{n}", "final_url": end, "text": "x"} for n, end in enumerate(ends)]
    pq.write_table(pa.Table.from_pylist(rows, schema=DOCUMENT_SCHEMA), tmp_path / "documents.parquet")
    summary = remove_wikipedia(
        RemoveWikipediaConfig(),
        documents=str(tmp_path / "documents.parquet"),
        output=str(tmp_path / "out"),
        options=RunOptions(),
    )
    assert (summary.records_out, dict(summary.dropped)) == (2, {"wikipedia_domain": 1})
