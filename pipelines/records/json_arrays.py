"""The elements of a JSON array, without parsing it as a whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import BinaryIO

from pipelines.errors import InputError

_READ_BYTES = 1 << 20
_STRUCTURE = re.compile(rb'["\[\]{},]')
# The rest of a string; possessive, so that a string that ends in the next block does not cost memory.
_STRING_END = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_STRING_PART = re.compile(rb"[^\\]*+(?:\\.[^\\]*+)*+", re.DOTALL)


def split_array(stream: BinaryIO, path: str, max_bytes: int) -> Iterator[tuple[int, bytes]]:
    """Yield the elements of an array as bytes, with their numbers from 1; a longer one is cut to `max_bytes`.

    Only strings and brackets are recognized, so an element need not be valid JSON. Raises InputError if the array does
    not end, or if anything but white space follows it.
    """
    number = depth = 0
    in_string = False
    element = bytearray()
    rest = b""
    while block := stream.read(_READ_BYTES):
        block = rest + block
        start = position = 0
        while position < len(block):
            if in_string:
                end = _STRING_END.match(block, position)
                if end is None:
                    part = _STRING_PART.match(block, position)
                    position = part.end() if part else position
                    break  # at most an escape character is left
                position, in_string = end.end(), False
                continue
            match = _STRUCTURE.search(block, position)
            if match is None:
                position = len(block)
                break
            position, character = match.end(), match[0]
            in_string = character == b'"'
            depth += (character in b"[{") - (character in b"]}")
            if depth == 1 and not number:
                number, start = 1, position
            elif depth == 0 or (depth == 1 and character == b","):
                element += block[start : position - 1][: max_bytes - len(element)]
                if element.strip():
                    yield number, bytes(element)
                number, start = number + 1, position
                element.clear()
            if depth == 0:
                _check_end(path, block[position:], stream)
                return
        element += block[start:position][: max_bytes - len(element)]
        rest = block[position:]
    raise InputError(f"{path}: its JSON array does not end; check that the copy is complete")


def _check_end(path: str, rest: bytes, stream: BinaryIO) -> None:
    while not rest.strip():
        if not (rest := stream.read(_READ_BYTES)):
            return
    raise InputError(f"{path}: has content after its JSON array; write one array, or one record per line")
