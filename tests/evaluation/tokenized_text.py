"""Text in the formats of PTB, the One Billion Word benchmark and CBT, made from sentences of books."""

from __future__ import annotations

import io
import re
from collections import Counter
from pathlib import Path

import msgspec
import zstandard

_CLITICS = re.compile(r"(?i)(?<=\w)('(?:s|m|d|re|ve|ll)|n't)\b")
_NUMBER = re.compile(r"[\d.,/-]*\d[\d.,/-]*")


def read_sentences(shared_data: Path, books: int = 12, characters: int = 60_000) -> list[str]:
    """Return the sentences of a part of some books, one paragraph's at most in one."""
    sentences = []
    path = shared_data / "text" / "books.jsonl.zst"
    with path.open("rb") as file, zstandard.ZstdDecompressor().stream_reader(file) as reader:
        for number, line in enumerate(io.TextIOWrapper(reader, encoding="utf-8")):
            if number % 9:
                continue
            text: str = msgspec.json.decode(line)["text"][5_000 : 5_000 + characters]
            for paragraph in re.sub(r"[_*#]", "", text).split("\n\n"):
                sentences += re.split(
                    r"""(?<=[.!?]) +(?=["A-Z])|(?<=[.!?]['"]) +(?=["A-Z])""", " ".join(paragraph.split())
                )
            if number >= 9 * books:
                break
    return [sentence for sentence in sentences if sentence]


def to_treebank(sentence: str) -> list[str]:
    """Tokenize as the Treebank and CBT do: `` and '', -LRB-, clitics split off, the last period a token."""
    text = re.sub(r"[“”]", '"', re.sub(r"[‘’]", "'", sentence)).replace("/", r"\/").replace("—", "--")
    text = re.sub(r"(?<!-)--(?!-)", " -- ", text)
    text = re.sub(r'(^|[\s(\[])"', r"\1 `` ", text).replace('"', " '' ")
    text = re.sub(r"(^|\s)'(?=\w)(?!(?:em|tis|twas|Tis|Twas|T)\b)", r"\1 ` ", text)
    text = re.sub(r"(?<=[^\s'])'(?=[\s,.;:!?)]|$)", " ' ", text)
    text = re.sub(r"[;:!?%$£]|,(?!\d)", r" \g<0> ", text)
    for mark, name in {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-"}.items():
        text = text.replace(mark, f" {name} ")
    text = re.sub(r"(?<=[^\s.])\.(?=(?: *(?:''?|-RRB-))* *$)", " . ", text)
    return re.sub(r"\b([Cc]an)(not)\b", r"\1 \2", _CLITICS.sub(r" \1", text)).split()


def to_cbt(sentences: list[str]) -> list[str]:
    """Return lines as CBT has them, without their numbers."""
    return [" ".join(to_treebank(sentence)) for sentence in sentences]


def to_ptb(sentences: list[str], vocabulary_size: int = 4000) -> list[str]:
    """Return lines as Mikolov's files have them: lower case, no punctuation, N for numbers, <unk> for rare words."""
    lines = []
    for sentence in sentences:
        tokens = [_NUMBER.sub("N", token.lower()) for token in to_treebank(sentence)]
        lines.append([token for token in tokens if token in ("%", "$", "'", "N") or re.search(r"\w", token)])
    kept = {word for word, _ in Counter(token for line in lines for token in line).most_common(vocabulary_size)}
    return [f" {' '.join(token if token in kept else '<unk>' for token in line)} " for line in lines]


def to_one_billion_words(sentences: list[str]) -> list[str]:
    """Return lines as 1BW has them: natural case, straight quotes, don 't, the last period a token."""
    lines = []
    for sentence in sentences:
        text = re.sub(r"[“”]", '"', re.sub(r"[‘’]", "'", sentence)).replace("—", " -- ")
        text = re.sub(r'[";:!?%$£()\[\]/]|,(?!\d)|--+', r" \g<0> ", text)
        text = re.sub(r"(?<=[^\W\d_])'(?=[^\W\d_])", " '", text)
        text = re.sub(r"(?:^|(?<=\s))'(?=\w)|(?<=\S)'(?=\s|$)", " ' ", text)
        text = re.sub(r"""(?<=[^\s.])\.(?=[\s"')\]]*$)""", " . ", text)
        lines.append(" ".join(text.split()))
    return lines
