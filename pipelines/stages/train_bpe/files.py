"""The files of a tokenizer folder: one tokenizer in four forms, and the proof that they are one."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from pipelines.algorithms.bpe import encode_piece, token_bytes
from pipelines.core.errors import WebtextError

END_OF_TEXT = "<|endoftext|>"
TOKENIZER, VOCABULARY, MERGES, RANKS = "tokenizer.json", "vocab.json", "merges.txt", "ranks.tiktoken"
_MERGES_HEADER = "#version: 0.2"
# The plain encoder is quadratic in the length of a piece, and text without spaces or a long rule is one piece.
_CHECKED_PIECE_CHARACTERS = 64

Merge = tuple[str, str]


def byte_level_tokenizer(vocabulary: Mapping[str, int], merges: Sequence[Merge]) -> Tokenizer:
    """Return a `tokenizers` tokenizer with GPT-2's split over a vocabulary and its merges."""
    tokenizer = Tokenizer(models.BPE(dict(vocabulary), list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def tokenizer_files(vocabulary: Mapping[str, int], merges: Sequence[Merge]) -> dict[str, bytes]:
    """Return the bytes of each file by name; `<|endoftext|>` is added to the vocabulary as its last id.

    Two merges of different pairs may give one token; it then has one id, that of the first.
    """
    whole = {**vocabulary, END_OF_TEXT: len(vocabulary)}
    tokenizer = byte_level_tokenizer(whole, merges)
    tokenizer.add_special_tokens([END_OF_TEXT])
    by_id = sorted(whole.items(), key=lambda item: item[1])
    ranks = [(token_bytes(token), id) for token, id in by_id if token != END_OF_TEXT]
    return {
        TOKENIZER: (tokenizer.to_str(pretty=True) + "\n").encode(),
        VOCABULARY: (json.dumps(dict(by_id), ensure_ascii=False) + "\n").encode(),
        MERGES: "\n".join([_MERGES_HEADER, *(f"{left} {right}" for left, right in merges), ""]).encode(),
        RANKS: b"".join(base64.b64encode(token) + f" {id}\n".encode() for token, id in ranks),
    }


def read_ranks(data: bytes) -> dict[bytes, int]:
    """Return the rank of each token of a tiktoken rank file."""
    lines = (line.split() for line in data.splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in lines}


def read_merges(data: bytes) -> list[Merge]:
    """Return the merges of a `merges.txt` in order."""
    lines = data.decode().split("\n")
    pairs = (line.split(" ") for line in lines if line and not line.startswith("#version"))
    return [(left, right) for left, right in pairs]


def check_same(files: Mapping[str, bytes], sample: Sequence[str]) -> int:
    """Return the tokens that a sample takes; raise WebtextError where the files do not all give the same ids for it.

    The ranks are compared on the sample with all but the first characters of a long piece left out.
    """
    ours = Tokenizer.from_str(files[TOKENIZER].decode())
    ours.encode_special_tokens = True
    theirs = byte_level_tokenizer(json.loads(files[VOCABULARY]), read_merges(files[MERGES]))
    ranks = read_ranks(files[RANKS])
    known: dict[str, list[int]] = {}
    total = 0
    for number, text in enumerate(sample):
        ids = ours.encode(text, add_special_tokens=False).ids
        _require_same(ids, theirs.encode(text).ids, f"{VOCABULARY} and {MERGES}", number)
        short = _with_short_pieces(ours, text)
        short_ids = ids if short == text else ours.encode(short, add_special_tokens=False).ids
        _require_same(short_ids, _encode_by_ranks(ours, short, ranks, known), RANKS, number)
        total += len(ids)
    return total


def _with_short_pieces(tokenizer: Tokenizer, text: str) -> str:
    spans = (span for _, span in tokenizer.pre_tokenizer.pre_tokenize_str(text))
    return "".join(text[start : min(end, start + _CHECKED_PIECE_CHARACTERS)] for start, end in spans)


def _encode_by_ranks(
    tokenizer: Tokenizer, text: str, ranks: Mapping[bytes, int], known: dict[str, list[int]]
) -> list[int]:
    ids: list[int] = []
    for piece, _ in tokenizer.pre_tokenizer.pre_tokenize_str(text):
        if piece not in known:
            known[piece] = encode_piece(token_bytes(piece), ranks)
        ids += known[piece]
    return ids


def _require_same(ids: Sequence[int], others: Sequence[int], name: str, number: int) -> None:
    if list(ids) != list(others):
        raise WebtextError(
            f"train-bpe: {name} and {TOKENIZER} give different ids for text {number} of the sample; "
            "this is a bug in webtext, please report it"
        )
