"""The figures of a tokenizer's report card equal plain counts, also for tiny and unusual corpora."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import regex
from tokenizers import Tokenizer

from pipelines.algorithms.bpe.byte_level import byte_characters
from pipelines.algorithms.bpe.merges import Merges, learn_merges
from pipelines.stages.train_bpe.report_card import make_card
from pipelines.stages.train_bpe.token_tally import Reference
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
    """Return the arguments of `make_card` for texts that were trained on and texts that were not."""
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
        "words": lambda: iter(pa.table(table, schema=schema).to_batches(max_chunksize=7)),
        "trained_on": lambda: (symbols, starts.copy(), counts.copy()),
        "tokenizer_json": _written(tokens, merges),
        "held_out_was_trained_on": not held_out,
    }


def _written(tokens: list[bytes], merges: Merges) -> bytes:
    names = [token_characters(token) for token in tokens]
    pairs = [(names[left], names[right]) for left, right in zip(merges.left, merges.right, strict=True)]
    return tokenizer_json({name: id for id, name in enumerate([*names, "<|endoftext|>"])}, pairs)


def _sample(documents: list[tuple[str | None, str, bool]]) -> pa.Table:
    groups, texts, held_out = zip(*documents, strict=True) if documents else ((), (), ())
    return pa.table(
        {
            "id": pa.array([str(number) for number in range(len(texts))], pa.string()),
            "group": pa.array(groups, pa.string()),
            "text": pa.array(texts, pa.string()),
            "held_out": pa.array(held_out, pa.bool_()),
        }
    )


def _ids(tokenizer_json: bytes, text: str) -> list[int]:
    tokenizer = Tokenizer.from_str(tokenizer_json.decode())
    tokenizer.encode_special_tokens = True
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module")
def cards() -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The arguments of a card, those of its reference, and the card."""
    arguments = _trained(_TEXTS[:3], _TEXTS[3:], 330)
    other = _trained(_TEXTS[3:], [], 270)
    sample = _sample(
        [("en", _TEXTS[0], False), ("ru", _TEXTS[1], False), (None, _TEXTS[2], False), ("en", _TEXTS[3], True)]
    )
    reference = Reference("other", other["tokenizer_json"])
    return arguments, other, make_card(**arguments, sample=sample, reference=reference, rare_below=3)


def test_corpus_figures_match_plain_counts(
    cards: tuple[dict[str, Any], dict[str, Any], dict[str, Any]],
) -> None:
    arguments, other, card = cards
    for tokenizer, figures in ((arguments, card["corpus"]), (other, card["reference"])):
        size = len(tokenizer["tokens"]) + 1
        counts = Counter(id for text in _TEXTS[:3] for id in _ids(tokenizer["tokenizer_json"], text))
        total = sum(counts.values())
        assert figures["tokens"] == total
        assert figures["bytes_per_token"] == pytest.approx(sum(len(t.encode()) for t in _TEXTS[:3]) / total, abs=1e-6)
        entropy = math.log(sum((count / total) ** 2.5 for count in counts.values())) / -1.5
        assert figures["renyi_efficiency"] == pytest.approx(entropy / math.log(size), abs=1e-6)
        words = [word for text in _TEXTS[:3] for word in _SPLIT.findall(text) if word.strip(" ").isalpha()]
        lengths = [len(_ids(tokenizer["tokenizer_json"], word)) for word in words]
        assert figures["fertility"] == pytest.approx(sum(lengths) / len(words), abs=1e-6)
        assert figures["continued_words"] == pytest.approx(sum(n > 1 for n in lengths) / len(words), abs=1e-6)
    assert card["corpus"]["words"] == sum(len(_SPLIT.findall(text)) for text in _TEXTS[:3])
    assert card["vocabulary"] == {"entries": 330, "merges": 73}


def test_groups(cards: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
    arguments, other, card = cards
    rows = {row["group"]: row for row in card["groups"]}
    assert [row["bytes"] for row in card["groups"]] == sorted((row["bytes"] for row in card["groups"]), reverse=True)
    assert set(rows) == {"en", "ru", "(none)"}
    assert rows["en"]["documents"] == 2
    assert rows["en"]["tokens"] == sum(len(_ids(arguments["tokenizer_json"], text)) for text in (_TEXTS[0], _TEXTS[3]))
    assert rows["ru"]["reference_tokens"] == len(_ids(other["tokenizer_json"], _TEXTS[1]))
    assert rows["ru"]["bytes_per_token"] == pytest.approx(rows["ru"]["bytes"] / rows["ru"]["tokens"], abs=1e-6)


def test_held_out_text(cards: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
    arguments, _, card = cards
    used = Counter(_ids(arguments["tokenizer_json"], _TEXTS[3]))
    held_out = card["held_out"]
    assert held_out["measured_on"] == "all words"
    assert not held_out["was_trained_on"]
    assert (held_out["tokens"], held_out["entries_used"]) == (sum(used.values()), len(used))
    assert held_out["share_used"] == pytest.approx(len(used) / 329, abs=1e-6)
    assert held_out["unused"]
    assert not {entry["id"] for entry in held_out["unused"]} & set(used)


def test_rare_entries_and_their_counts(cards: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
    arguments, _, card = cards
    counts = Counter(id for text in _TEXTS[:3] for id in _ids(arguments["tokenizer_json"], text))
    rare = card["rare"]
    assert rare["entries"] == sum(counts[id] < 3 for id in range(329))
    assert rare["single_bytes"] == sum(counts[id] < 3 for id in range(256))
    assert rare["never"] == sum(counts[id] == 0 for id in range(329))
    assert sum(rare["by_powers_of_ten"]) == 329
    first = rare["listed"][0]
    assert first["id"] >= 256
    for entry in rare["listed"]:
        assert entry["count"] == counts[entry["id"]] < 3
        merge = entry["id"] - 256
        assert entry["when_merged"] == (None if merge < 0 else int(arguments["merges"].counts[merge]))


def test_merges_and_curves(cards: tuple[dict[str, Any], dict[str, Any], dict[str, Any]]) -> None:
    arguments, other, card = cards
    checked = card["verification"]
    assert checked["checked"] == checked["right"] >= 8
    assert [checked["steps"][at]["step"] for at in (0, -1)] == [1, 73]
    curves = card["curves"]
    assert curves["bytes_per_token_by_entries"][0] == [257, 1.0]
    assert curves["bytes_per_token_by_entries"][-1] == [330, card["corpus"]["bytes_per_token"]]
    assert curves["count_by_step"][0] == [1, int(arguments["merges"].counts[0])]
    assert curves["share_of_tokens"][-1][1] == 1
    assert sum(entries for _, entries in curves["entries_by_bytes"]) == 329
    assert sum(entries for _, entries in curves["reference_entries_by_bytes"]) == len(other["tokens"])


def test_a_wrong_merge_is_reported() -> None:
    arguments = _trained(_TEXTS, [], 300)
    arguments["merges"].counts[0] += 1
    card = make_card(**arguments, sample=_sample([]))
    assert card["verification"]["right"] == card["verification"]["checked"] - 1
    wrong = card["verification"]["steps"][0]
    assert not wrong["is_right"]
    assert wrong["found_count"] == wrong["count"] - 1


def test_the_card_is_deterministic_json() -> None:
    arguments = _trained(_TEXTS, [], 300)
    sample = _sample([("a", _TEXTS[0], True), ("b", _TEXTS[1], False)])
    one = json.dumps(make_card(**arguments, sample=sample))
    assert one == json.dumps(make_card(**arguments, sample=sample, threads=True))


def test_without_held_out_words_the_sample_is_measured() -> None:
    arguments = _trained(_TEXTS, [], 300)
    card = make_card(**arguments, sample=_sample([("a", _TEXTS[0], True), ("b", _TEXTS[1], False)]))
    used = set(_ids(arguments["tokenizer_json"], _TEXTS[0]))
    assert card["held_out"]["was_trained_on"]
    assert card["held_out"]["measured_on"] == "the sample"
    assert card["held_out"]["bytes"] == len(_TEXTS[0].encode())
    assert card["held_out"]["entries_used"] == len(used)


def test_a_reference_with_a_different_split_has_no_word_figures() -> None:
    arguments = _trained(_TEXTS, [], 300)
    settings = json.loads(arguments["tokenizer_json"])
    settings["pre_tokenizer"]["add_prefix_space"] = True
    reference = Reference("prefixed", json.dumps(settings).encode())
    card = make_card(**arguments, sample=_sample([("a", _TEXTS[0], True)]), reference=reference)
    assert card["reference"]["fertility"] is None
    assert card["reference"]["held_out"]["share_used"] > 0
    assert card["groups"][0]["reference_bytes_per_token"] > 0
    assert card["curves"]["reference_frequency_by_rank"] == []


def test_small_groups_share_a_row() -> None:
    arguments = _trained(_TEXTS, [], 300)
    documents = [(f"site{number}", "tower " * (number + 1), False) for number in range(50)]
    card = make_card(**arguments, sample=_sample(documents))
    assert len(card["groups"]) == 21
    assert card["groups"][0]["group"] == "site49"
    assert card["groups"][-1]["group"] == "(30 others)"
    assert card["groups"][-1]["documents"] == 30
    assert sum(row["bytes"] for row in card["groups"]) == sum(len(text) for _, text, _ in documents)


@pytest.mark.parametrize(("texts", "sample"), [([], []), (["a"], [(None, "", True)]), (["ab ab"], [("x", "ab", True)])])
def test_tiny_corpora(texts: list[str], sample: list[tuple[str | None, str, bool]]) -> None:
    arguments = _trained(texts, [], 258)
    card = make_card(**arguments, sample=_sample(sample))
    assert card["vocabulary"]["entries"] == 258 - (1 if texts != ["ab ab"] else 0)
    assert card["verification"]["checked"] == card["verification"]["right"] == len(arguments["merges"].left)
    assert (card["corpus"]["bytes_per_token"] is None) == (not texts)
    json.dumps(card, allow_nan=False)
