"""Byte-level BPE written plainly: GPT-2's byte alphabet, and encoding by ranks."""

from __future__ import annotations

import functools
from collections.abc import Mapping

_PRINTABLE = (*range(33, 127), *range(161, 173), *range(174, 256))


@functools.cache
def byte_characters() -> dict[int, str]:
    """Return the character that stands for each byte in GPT-2's vocabularies, in the order of their ids.

    The 188 bytes that print as themselves in Latin-1 come first, then the others as the characters from 256 on.
    """
    others = [byte for byte in range(256) if byte not in _PRINTABLE]
    characters = {byte: chr(byte) for byte in _PRINTABLE}
    return characters | {byte: chr(256 + position) for position, byte in enumerate(others)}


@functools.cache
def _bytes_of_characters() -> dict[str, int]:
    return {character: byte for byte, character in byte_characters().items()}


def token_bytes(token: str) -> bytes:
    """Return the bytes that a token written in GPT-2's characters stands for; raise KeyError for another character."""
    return bytes(map(_bytes_of_characters().__getitem__, token))


def encode_piece(piece: bytes, ranks: Mapping[bytes, int]) -> list[int]:
    """Return the ids of one piece of the split text: as long as a pair is in `ranks`, merge the lowest, leftmost first.

    The plain form of what tiktoken does with a rank file; quadratic in the length of the piece.
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
