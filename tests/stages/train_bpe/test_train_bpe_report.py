"""The figures of a tokenizer's report equal plain counts, also for tiny and unusual corpora."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import regex
from tokenizers import Tokenizer

from pipelines.algorithms.bpe.byte_level import byte_characters
from pipelines.algorithms.bpe.merges import Merges, learn_merges
from pipelines.algorithms.bpe.suspicious_tokens import kind_of
from pipelines.stages.train_bpe.report import TokenizerUse, make_report
from pipelines.tokenizers.formats import token_characters, tokenizer_json

_SPLIT = regex.compile(r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+")
_IDS = {byte: id for id, byte in enumerate(byte_characters())}
_TEXTS = [
    "The lowest of the lower towers stood 10000 years; <|endoftext|> it's text.",
    "Нижняя башня — the tower, naïve café\n\n    \t indented\r\n",
    "塔が立つ。塔が立つ。 tower tower tower \u200b\u200b",
    "--------------------------------\n--------------------------------",
]


def _trained(texts: list[str], held_out: list[str], entries: int) -> dict[str, Any]:
    """Return the arguments of `make_report` for texts that were trained on and texts that were not."""
    seen, unseen = (Counter(word for text in group for word in _SPLIT.findall(text)) for group in (texts, held_out))
    words = sorted(seen | unseen)
    encoded = [word.encode() for word in words]
    symbols = np.array([_IDS[byte] for word in encoded for byte in word], np.int32)
    starts = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    counts = np.array([seen[word] for word in words], np.int64)
    merges = learn_merges(symbols, starts, counts, first_id=256, most=entries - 257, min_count=1)
    tokens = [bytes([byte]) for byte in byte_characters()]
    for left, right in zip(merges.left.tolist(), merges.right.tolist(), strict=True):
        tokens.append(tokens[left] + tokens[right])
    table = {"word": words, "count": counts, "held_out": [unseen[word] for word in words]}
    schema = pa.schema([("word", pa.string()), ("count", pa.int64()), ("held_out", pa.int64())])
    return {
        "tokens": tokens,
        "merges": merges,
        "words": pa.table(table, schema=schema).to_batches(max_chunksize=7),
        "tokenizer_json": _written(tokens, merges),
        "held_out_was_trained_on": not held_out,
    }


def _written(tokens: list[bytes], merges: Merges) -> bytes:
    names = [token_characters(token) for token in tokens]
    pairs = [(names[left], names[right]) for left, right in zip(merges.left, merges.right, strict=True)]
    return tokenizer_json({name: id for id, name in enumerate([*names, "<|endoftext|>"])}, pairs)


def _sample(documents: list[tuple[str, bool]]) -> pa.Table:
    texts, held_out = zip(*documents, strict=True) if documents else ((), ())
    return pa.table({"text": pa.array(texts, pa.string()), "held_out": pa.array(held_out, pa.bool_())})


def _ids(tokenizer_json: bytes, text: str) -> list[int]:
    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    tokenizer.encode_special_tokens = True
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module")
def reports() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The arguments of a report, those of its reference, and the report."""
    arguments = _trained(_TEXTS[:3], _TEXTS[3:], 330)
    other = _trained(_TEXTS[3:], [], 270)
    sample = _sample([(_TEXTS[0], False), (_TEXTS[1], False), (_TEXTS[3], True)])
    reference = TokenizerUse(other["tokenizer_json"], "other.json", "other")
    return arguments, other, make_report(**arguments, sample=sample, reference=reference, rare_below=3)


def test_corpus_figures_match_plain_counts(
    reports: tuple[dict[str, Any], dict[str, Any], dict[str, Any]],
) -> None:
    arguments, other, report = reports
    for tokenizer, figures in ((arguments, report["tokenizer"]), (other, report["reference"])):
        for name, texts in (("bytes_per_token", _TEXTS[:3]), ("sample_bytes_per_token", [*_TEXTS[:2], _TEXTS[3]])):
            tokens = sum(len(_ids(tokenizer["tokenizer_json"], text)) for text in texts)
            assert figures[name] == pytest.approx(sum(len(text.encode()) for text in texts) / tokens, abs=1e-6)
        words = [word for text in _TEXTS[:3] for word in _SPLIT.findall(text) if word.strip(" ").isalpha()]
        lengths = [len(_ids(tokenizer["tokenizer_json"], word)) for word in words]
        assert figures["fertility"] == pytest.approx(sum(lengths) / len(words), abs=1e-6)
    assert report["corpus"]["words"] == sum(len(_SPLIT.findall(text)) for text in _TEXTS[:3])
    assert report["corpus"]["bytes"] == sum(len(text.encode()) for text in _TEXTS[:3])
    assert (report["tokenizer"]["entries"], report["tokenizer"]["merges"]) == (330, 73)
    assert (report["reference"]["name"], report["reference"]["entries"]) == ("other", len(other["tokens"]) + 1)


def test_held_out_text(reports: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
    arguments, _, report = reports
    used = Counter(_ids(arguments["tokenizer_json"], _TEXTS[3]))
    held_out = report["tokenizer"]["held_out"]
    assert held_out["measured_on"] == "all words"
    assert not report["held_out_was_trained_on"]
    assert (held_out["tokens"], held_out["entries_used"]) == (sum(used.values()), len(used))
    assert held_out["share_used"] == pytest.approx(len(used) / 329, abs=1e-6)
    assert report["unused"]
    assert not {entry["id"] for entry in report["unused"]} & set(used)


def test_rare_entries_and_their_counts(reports: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
    arguments, _, report = reports
    counts = Counter(id for text in _TEXTS[:3] for id in _ids(arguments["tokenizer_json"], text))
    rare = report["rare"]
    assert rare["entries"] == sum(counts[id] < 3 for id in range(329))
    assert rare["single_bytes"] == sum(counts[id] < 3 for id in range(256))
    assert rare["never"] == sum(counts[id] == 0 for id in range(329))
    assert [entry["id"] for entry in rare["listed"]] == sorted(
        (id for id in range(329) if counts[id] < 3), key=lambda id: (id < 256, counts[id], id)
    )[:40]
    first = rare["listed"][0]
    assert first["id"] >= 256
    for entry in rare["listed"]:
        assert entry["count"] == counts[entry["id"]] < 3
        merge = entry["id"] - 256
        assert entry["when_merged"] == (None if merge < 0 else int(arguments["merges"].counts[merge]))


def test_longest_and_suspicious_entries(reports: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
    arguments, _, report = reports
    lengths = [len(token) for token in arguments["tokens"]]
    assert [entry["bytes"] for entry in report["longest"]] == sorted(lengths, reverse=True)[:40]
    for kind in report["suspicious"]:
        listed = [arguments["tokens"][entry["id"]] for entry in kind["listed"]]
        assert {kind_of(token) for token in listed} == {kind["kind"]}
        assert kind["entries"] == sum(kind_of(token) == kind["kind"] for token in arguments["tokens"])


def test_the_report_is_deterministic_json() -> None:
    arguments = _trained(_TEXTS, [], 300)
    sample = _sample([(_TEXTS[0], True), (_TEXTS[1], False)])
    first, second = (json.dumps(make_report(**arguments, sample=sample)) for _ in range(2))
    assert first == second


def test_without_held_out_words_the_sample_is_measured() -> None:
    arguments = _trained(_TEXTS, [], 300)
    report = make_report(**arguments, sample=_sample([(_TEXTS[0], True), (_TEXTS[1], False)]))
    used = set(_ids(arguments["tokenizer_json"], _TEXTS[0]))
    held_out = report["tokenizer"]["held_out"]
    assert report["held_out_was_trained_on"]
    assert held_out["measured_on"] == "the sample"
    assert held_out["bytes"] == len(_TEXTS[0].encode())
    assert held_out["entries_used"] == len(used)


def test_a_reference_with_a_different_split_has_no_word_figures() -> None:
    arguments = _trained(_TEXTS, [], 300)
    settings = json.loads(arguments["tokenizer_json"])
    settings["pre_tokenizer"]["add_prefix_space"] = True
    reference = TokenizerUse(json.dumps(settings).encode(), "prefixed.json", "prefixed")
    report = make_report(**arguments, sample=_sample([(_TEXTS[0], True)]), reference=reference)
    assert report["reference"]["fertility"] is None
    assert report["reference"]["bytes_per_token"] is None
    assert report["reference"]["held_out"]["share_used"] > 0
    assert report["reference"]["sample_bytes_per_token"] > 0


@pytest.mark.parametrize(("texts", "sample"), [([], []), (["a"], [("", True)]), (["ab ab"], [("ab", True)])])
def test_tiny_corpora(texts: list[str], sample: list[tuple[str, bool]]) -> None:
    report = make_report(**_trained(texts, [], 258), sample=_sample(sample))
    assert report["tokenizer"]["entries"] == 258 - (1 if texts != ["ab ab"] else 0)
    assert (report["tokenizer"]["bytes_per_token"] is None) == (not texts)
    assert report["held_out_was_trained_on"] == (texts == ["ab ab"])  # nothing is held out of the others
    json.dumps(report, allow_nan=False)
