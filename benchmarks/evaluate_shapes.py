"""Examples of the shapes of benchmarks, made from public-domain books and technical documents."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import zstandard

_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")
_PRONOUN = re.compile(r"(?<=[a-z] )(he|she|his|her|they|their)(?= [a-z])")
_CANDIDATES = ("Anna", "Mr. Hill", "the captain", "The old man", "A doctor", "My brother")


def write_sample(data: Path, path: Path) -> None:
    """Write every 40th document, cut to 100,000 characters, for a tokenizer and a model."""
    texts = [text[:100_000] for name in ("docs", "books") for text in _texts(data, name)[::40]]
    _write(path, ({"id": str(number), "text": text} for number, text in enumerate(texts)))


def write_lambada(data: Path, path: Path, count: int) -> None:
    """Write passages of 60 to 90 words."""

    def passages(draw: random.Random) -> Iterator[dict[str, Any]]:
        for text in _books(data, draw):
            words = text.split()[: draw.randint(60, 90)]
            if len(words) >= 60 and words[-1].isalpha():
                yield {"text": " ".join(words)}

    _write_some(path, passages, count)


def write_wikitext(data: Path, path: Path, count: int, characters: int = 10_000) -> None:
    """Write pages with their line ends."""
    pages = ({"page": text[:characters].strip()} for text in _texts(data, "docs")[7::40] if len(text) > characters // 2)
    _write(path, (page for page, _ in zip(pages, range(count), strict=False)))


def write_winograd(data: Path, path: Path, count: int) -> None:
    """Write sentences with a pronoun and two candidates, in the fields of WSC273."""

    def schemas(draw: random.Random) -> Iterator[dict[str, Any]]:
        for text in _books(data, draw):
            for sentence in _SENTENCE_END.split(text):
                match = _PRONOUN.search(sentence)
                if match and 8 < len(sentence.split()) < 40 and match.end() < len(sentence) * 0.7:
                    options = draw.sample(_CANDIDATES, 2)
                    fields = {"text": sentence, "pronoun": match[0], "pronoun_loc": match.start(), "quote": ""}
                    yield {**fields, "options": options, "label": draw.randrange(2)}
                    break

    _write_some(path, schemas, count)


def write_race(data: Path, path: Path, count: int) -> None:
    """Write articles, every tenth longer than a context of 1,024, and four sentences of which one follows."""

    def questions(draw: random.Random) -> Iterator[dict[str, Any]]:
        for number, text in enumerate(_books(data, draw)):
            *article, ending = _SENTENCE_END.split(text[: 8_000 if number % 10 == 0 else 1_200])[:-1]
            others = draw.sample(article, 3) if len(article) > 5 else []
            if others and ending not in others:
                prompt = f"{' '.join(article)}\nQuestion: Which sentence comes next?\nAnswer:"
                yield _shuffled(draw, prompt, [ending, *others])

    _write_some(path, questions, count)


def write_cbt(data: Path, path: Path, count: int) -> None:
    """Write about 430 words and the beginning of a sentence, which ten words and its rest may follow."""

    def questions(draw: random.Random) -> Iterator[dict[str, Any]]:
        for text in _books(data, draw):
            words = text.split()
            size = draw.randint(420, 500)
            nouns = list(dict.fromkeys(word for word in words[:size] if word.isalpha() and len(word) > 3))
            if len(words) > size + 12 and len(nouns) > 60:
                answer, rest = words[size], " ".join(words[size + 1 : size + 9])
                others = draw.sample([noun for noun in nouns if noun != answer], 9)
                choices = [f"{word} {rest}" for word in [answer, *others]]
                yield _shuffled(draw, " ".join(words[:size]), choices)

    _write_some(path, questions, count)


def write_coqa(data: Path, path: Path, dialogues: int) -> None:
    """Write stories of about 320 words with 12 to 16 turns; a record is a turn with all before it as its prompt."""

    def turns(draw: random.Random) -> Iterator[list[dict[str, Any]]]:
        for text in _books(data, draw):
            words = text.split()[: draw.randint(280, 360)]
            if len(words) < 280:
                continue
            prompt = " ".join(words) + "\n\n"
            records = []
            for _ in range(draw.randint(12, 16)):
                place = draw.randrange(len(words) - 12)
                question, answer = " ".join(words[place : place + 6]), " ".join(words[place + 6 : place + 9])
                prompt += f"Q: What follows {question}?\nA:"
                records.append({"prompt": prompt, "answer": answer})
                prompt += f" {answer}\n"
            yield records

    draw = random.Random(0)
    some = (record for _, records in zip(range(dialogues), turns(draw), strict=False) for record in records)
    _write(path, some)


def _shuffled(draw: random.Random, prompt: str, options: list[str]) -> dict[str, Any]:
    """Return a question whose first option is right."""
    mixed = draw.sample(options, len(options))
    return {"prompt": prompt, "options": mixed, "gold": mixed.index(options[0])}


def _books(data: Path, draw: random.Random) -> Iterator[str]:
    """Yield passages of up to 8,000 characters from random places of books, each from the start of a paragraph."""
    books = [text for text in _texts(data, "books") if len(text) > 50_000]
    while True:
        text = draw.choice(books)
        start = text.find("\n\n", draw.randrange(len(text) - 20_000))
        yield " ".join(text[start : start + 9_000].replace("_", "").split())[:8_000]


def _texts(data: Path, name: str) -> list[str]:
    with (data / "text" / f"{name}.jsonl.zst").open("rb") as file:
        lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), encoding="utf-8")
        return [json.loads(line)["text"] for line in lines]


def _write_some(path: Path, records: Callable[[random.Random], Iterator[dict[str, Any]]], count: int) -> None:
    _write(path, (record for _, record in zip(range(count), records(random.Random(0)), strict=False)))


def _write(path: Path, records: Iterator[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
