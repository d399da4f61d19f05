"""Byte-level BPE in plain Python: GPT-2's byte alphabet, and encoding by merge ranks."""

from __future__ import annotations

import functools
from collections.abc import Mapping

_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))


@functools.cache
def byte_characters() -> dict[int, str]:
    """Return the character that represents each byte in GPT-2's vocabularies, in the order of their ids.

    The 188 printable bytes of Latin-1 come first and represent themselves; the others are the characters from 256 on.
    """
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    characters = {byte: chr(byte) for byte in _PRINTABLE}
    return characters | {byte: chr(256 + position) for position, byte in enumerate(others)}


@functools.cache
def _bytes_of_characters() -> dict[str, int]:
    return {character: byte for byte, character in byte_characters().items()}


def token_bytes(token: str) -> bytes:
    """Return the bytes of a token in GPT-2's byte alphabet; raise KeyError for a character outside it."""
    return bytes(map(_bytes_of_characters().__getitem__, token))


def encode_piece(piece: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    """Return the token ids of one pre-token: merge the pair with the lowest rank, leftmost first, until none is left.

    The algorithm of tiktoken for a file of ranks; quadratic in the length of the piece.
    """
    parts = [piece[position : position + 1] for position in range(len(piece))]
    while len(parts) > 1:
        pairs = [
            (ranks[pair], position)
            for position in range(len(parts) - 1)
            if (pair := parts[position] + parts[position + 1]) in ranks
        ]
        if not pairs:
            break
        _, position = min(pairs)
        parts[position : position + 2] = [parts[position] + parts[position + 1]]
    return [ranks[part] for part in parts]
