from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from misbehaving_extractor import broken_at_start, misbehaving
from quick_extractor import first_paragraph

from pipelines.algorithms.kernels import compile_events
from pipelines.errors import WebtextError
from pipelines.stages.extract import child
from pipelines.stages.extract.child import (
    _GRACE_S,
    Limits,
    PageReader,
    PageText,
    RawPage,
    clean_text,
    declared_language,
    extract_text,
)
from pipelines.stages.extract.extractors import Extracted, fast_text, newspaper_text, trafilatura_text

LIMITS = Limits(timeout_s=20, memory_limit_mib=2048)

# Most tests are about what a child does, not how it starts.
_FORKED = pytest.mark.usefixtures("warm_processes")


def page(text: str) -> RawPage:
    return RawPage(f"<p>{text}</p>".encode(), "text/html; charset=utf-8", None)


def read_with(reader: PageReader, texts: Iterable[str]) -> list[PageText]:
    return [text for _, text in reader.extract((None, page(text)) for text in texts)]


@_FORKED
@pytest.mark.parametrize("batch_pages", [1, 4, 11])
def test_pages_that_hang_crash_or_exhaust_memory_are_dropped_and_their_batch_continues(monkeypatch, batch_pages):
    monkeypatch.setattr(child, "_BATCH_PAGES", batch_pages)
    texts = ["one", "HANG", "two", "ABORT", "three", "EXIT", "four", "GROW", "five", "six", "SPIN"]
    with contextlib.closing(PageReader(misbehaving, Limits(timeout_s=1, memory_limit_mib=2048))) as reader:
        results = list(reader.extract((text, page(text)) for text in texts))
    assert [text for text, _ in results] == texts
    assert [outcome.text for _, outcome in results if not outcome.problem] == [
        f"<p>{n}</p>" for n in ("one", "two", "three", "four", "five", "six")
    ]
    assert {text: (outcome.problem, outcome.detail) for text, outcome in results if outcome.problem} == {
        "HANG": ("timeout", "more than 1 s"),
        "ABORT": ("crashed", "ended by SIGABRT"),
        "EXIT": ("crashed", "ended with exit code 7"),
        "GROW": ("out_of_memory", None),
        "SPIN": ("timeout", "more than 1 s"),
    }
    *processes, five, six = (outcome.title for _, outcome in results if outcome.title)
    assert len({*processes, five}) == 5
    assert five == six


@_FORKED
def test_the_next_batch_is_read_while_the_child_works(tmp_path, monkeypatch):
    monkeypatch.setattr(child, "_BATCH_PAGES", 1)
    marker = tmp_path / "marker"

    def pages() -> Iterator[tuple[int, RawPage]]:
        yield 1, page(f"KILLED|0|{marker}|")  # writes the file, and is not killed
        deadline = time.monotonic() + 20
        while not marker.exists():
            assert time.monotonic() < deadline, "the child does not work while the parent reads"
            time.sleep(0.01)
        yield 2, page("two")

    with contextlib.closing(PageReader(misbehaving, LIMITS)) as reader:
        assert [number for number, text in reader.extract(pages()) if text.text] == [1, 2]


@_FORKED
@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX signals")
def test_a_slow_source_neither_saves_a_page_that_hangs_nor_costs_one_whose_text_fills_the_pipe(monkeypatch):
    monkeypatch.setattr(child, "_BATCH_PAGES", 2)

    def pages() -> Iterator[tuple[None, RawPage]]:
        yield None, page("long " * 400_000)
        yield None, page("HANG")
        time.sleep(4)  # more than the timeout of both pages together
        yield None, page("two")

    with contextlib.closing(PageReader(misbehaving, Limits(timeout_s=1, memory_limit_mib=2048))) as reader:
        long, hung, two = (text for _, text in reader.extract(pages()))
    assert (long.problem, len(long.text)) == (None, 5 * 400_000 + len("<p></p>"))
    assert (hung.problem, hung.detail) == ("timeout", "more than 1 s")
    assert two.problem is None


@_FORKED
def test_the_child_says_that_it_compiles_kernels(monkeypatch):
    compilations = []
    monkeypatch.setattr(compile_events, "_listener", lambda: compilations.append(True))
    with contextlib.closing(PageReader(misbehaving, LIMITS)) as reader:
        assert [text.text for text in read_with(reader, ["one", "COMPILE"])] == ["<p>one</p>", "<p>COMPILE</p>"]
    assert compilations == [True]


@_FORKED
def test_at_most_two_batches_of_pages_are_in_memory():
    megabyte = b"<p>short</p>".ljust(1 << 20)
    with contextlib.closing(PageReader(first_paragraph, LIMITS)) as reader:
        assert [text.text for text in read_with(reader, ["started"])] == ["started"]
        tracemalloc.start()
        pages = ((number, RawPage(megabyte + bytes([number]), None, None)) for number in range(32, 96))
        numbers = [number for number, text in reader.extract(pages) if text.text == "short"]
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert numbers == list(range(32, 96))
    assert peak_bytes < (2 * child._BATCH_PAGES + 3) << 20


@_FORKED
def test_pages_with_a_problem_pass_through_in_order_without_a_child():
    problem = PageText(problem="damaged_record")
    with contextlib.closing(PageReader(misbehaving, LIMITS)) as reader:
        assert list(reader.extract([(1, problem)])) == [(1, problem)]
        assert reader._child is None
        results = list(reader.extract([(1, problem), (2, page("two")), (3, problem), (4, page("four"))]))
    assert [(number, text.problem, text.text) for number, text in results] == [
        (1, "damaged_record", ""),
        (2, None, "<p>two</p>"),
        (3, "damaged_record", ""),
        (4, None, "<p>four</p>"),
    ]


@_FORKED
def test_results_that_nobody_waits_for_are_not_those_of_later_pages():
    with contextlib.closing(PageReader(misbehaving, LIMITS)) as reader:
        abandoned = reader.extract((text, page(text)) for text in ("one", "two", "three"))
        assert next(abandoned)[1].text == "<p>one</p>"
        abandoned.close()
        assert [text.text for text in read_with(reader, ["four"])] == ["<p>four</p>"]


@_FORKED
@pytest.mark.parametrize("times", [1, 2])
def test_a_page_whose_child_is_killed_from_outside_is_tried_again(tmp_path, monkeypatch, times):
    monkeypatch.setattr(child, "_PAUSE_S", 0.01)
    text = f"KILLED|{times}|{tmp_path / 'marker'}|"
    with contextlib.closing(PageReader(misbehaving, LIMITS)) as reader:
        one, killed, two = read_with(reader, ["one", text, "two"])
    assert killed.problem is None
    assert text in killed.text
    assert killed.title == two.title != one.title


@_FORKED
def test_a_page_whose_child_is_always_killed_from_outside_is_not_dropped(tmp_path, monkeypatch):
    """The system kills when its memory is short, and another run would keep the page."""
    pauses = []
    monkeypatch.setattr(child.time, "sleep", pauses.append)
    with (
        pytest.raises(
            WebtextError, match=r"memory is short; .* fewer --workers to resume, .* a lower --memory-limit-mib"
        ),
        contextlib.closing(PageReader(misbehaving, LIMITS)) as reader,
    ):
        read_with(reader, [f"KILLED|9|{tmp_path / 'marker'}|"])
    assert (tmp_path / "marker").read_text() == "..."
    assert pauses == [child._PAUSE_S]


@_FORKED
def test_an_exception_loses_the_page_but_not_the_child():
    with contextlib.closing(PageReader(misbehaving, LIMITS)) as reader:
        one, raised, two = read_with(reader, ["one", "RAISE", "two"])
    assert raised == PageText(problem="crashed", detail="RecursionError")
    assert one.title == two.title


@_FORKED
def test_a_child_is_replaced_after_a_number_of_pages():
    with contextlib.closing(PageReader(misbehaving, Limits(20, 2048, pages_per_child=2))) as reader:
        titles = [text.title for text in read_with(reader, map(str, range(4)))]
    assert titles[0] == titles[1] != titles[2] == titles[3]


@_FORKED
def test_the_child_exits_with_the_block():
    with contextlib.closing(PageReader(misbehaving, LIMITS)) as reader:
        [text] = read_with(reader, ["one"])
        assert text.title is not None
        pid = int(text.title.split()[1])
        os.kill(pid, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_an_extractor_that_cannot_start_is_an_error_not_a_crash_of_every_page(capfd):
    with (
        pytest.raises(WebtextError, match="the extractor did not start"),
        contextlib.closing(PageReader(broken_at_start, LIMITS)) as reader,
    ):
        read_with(reader, ["one"])
    assert "no such parser" in capfd.readouterr().err


def test_characters_that_parquet_cannot_store_are_removed():
    odd = RawPage("\ufeffa\ud800b\x00c\r\nd".encode("utf-8", "surrogatepass"), None, None)
    assert clean_text(Extracted(" a \n title\ud800 ", "x\ud800\x00\r\ny\rz \n"), "en") == PageText(
        "a title", "x\ny\nz", "en"
    )
    outcome = extract_text(misbehaving, odd)
    outcome.text.encode()
    assert "\x00" not in outcome.text


def test_decompression_bombs_are_dropped_before_they_fill_memory():
    import gzip

    bomb = RawPage(gzip.compress(bytes(64 << 20)), "text/html", None, {"Content-Encoding": "gzip"})
    outcome = extract_text(misbehaving, bomb)
    assert outcome.problem == "too_large"
    chunked = RawPage(b"5\r\n<p>ab\r\n2\r\nc\n\r\n0\r\n\r\n", "text/html", None, {"Transfer-Encoding": "chunked"})
    assert extract_text(misbehaving, chunked).text == "<p>abc"


def test_files_that_are_declared_as_html_are_not_pages():
    for data, name in ((b"%PDF-1.4 1 0 obj", "PDF"), (b"\x89PNG\r\n", "PNG"), (b"PK\x03\x04", "ZIP")):
        outcome = extract_text(misbehaving, RawPage(data, "text/html", None))
        assert (outcome.problem, outcome.detail) == ("not_html", name)


def test_the_indentation_of_a_first_line_of_code_is_kept():
    page = RawPage(b" \n\n    def f(x):\n        return x\n \n", "text/plain", None, plain=True)
    assert extract_text(misbehaving, page).text == "    def f(x):\n        return x"


def test_only_the_child_has_the_environment_that_it_needs(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    monkeypatch.delenv("MALLOC_TRIM_THRESHOLD_", raising=False)
    with contextlib.closing(PageReader(misbehaving, Limits(timeout_s=60, memory_limit_mib=2048))) as reader:
        assert read_with(reader, ["one"])[0].text
    assert os.environ["OPENBLAS_NUM_THREADS"] == "2"
    assert "MALLOC_TRIM_THRESHOLD_" not in os.environ


@pytest.mark.parametrize("extractor", [fast_text, trafilatura_text, newspaper_text])
def test_the_network_is_not_used(monkeypatch, extractor):
    def refuse(*_arguments, **_named):
        raise AssertionError("extract opened a network connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    # Newspaper can download pages, their images and what a refresh names. In this process, where sockets are watched.
    html = (
        '<html><head><base href="http://a.org/"><meta http-equiv="refresh" content="0; url=http://a.org/next">'
        '<meta property="og:image" content="http://a.org/top.png"><link rel="canonical" href="http://a.org/b">'
        f'</head><body><article><h1>A title</h1><img src="c.png">{"<p>A sentence of the text of a page.</p>" * 20}'
    )
    text = extract_text(extractor, RawPage(html.encode(), "text/html", "http://a.org/page"))
    assert (text.problem, "A sentence of the text" in text.text) == (None, True)


@pytest.mark.parametrize(
    ("html", "language"),
    [
        ("<html lang=en>", "en"),
        ("<!doctype html>\n<HTML class='a' lang='PT-br' dir=ltr>", "pt"),
        ('<html xmlns="x" xml:lang="fr" lang="fr">', "fr"),
        ('<html data-lang="xx"><meta http-equiv="Content-Language" content="de, en">', "de"),
        ("<html lang=''>", None),
        ("<html><body lang=en>", None),
        ("", None),
    ],
)
def test_the_declared_language(html, language):
    assert declared_language(html.encode()) == language


_PARENT = """
import contextlib
import sys
sys.path.insert(0, {folder!r})
from misbehaving_extractor import misbehaving
from test_extract_child import read_with
from pipelines.stages.extract.child import Limits, PageReader

if __name__ == "__main__":
    with contextlib.closing(PageReader(misbehaving, Limits(timeout_s={timeout_s}, memory_limit_mib=2048))) as reader:
        print(read_with(reader, ["one"])[0].title.split()[1], flush=True)
        read_with(reader, [{text!r}])
"""


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs POSIX signals")
@pytest.mark.parametrize(("text", "timeout_s"), [("HANG", 60), ("SPIN", 1)])
def test_a_child_exits_when_its_parent_is_killed_even_while_parsing(tmp_path, monkeypatch, text, timeout_s):
    script = tmp_path / "parent.py"
    script.write_text(_PARENT.format(folder=str(Path(__file__).parent), text=text, timeout_s=timeout_s))
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        time.sleep(0.5)
        parent.kill()
    deadline = time.monotonic() + timeout_s + _GRACE_S + 5
    while _is_running(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _is_running(pid)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
