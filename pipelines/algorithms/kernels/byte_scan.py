"""Loads from byte buffers for numba kernels: one byte, a word of 8 bytes, and what stands where in a block of 32.

numba checks each index of an array for being negative, which keeps LLVM from looking at more than one byte at a time;
these loads check nothing, so the caller keeps positions inside the buffer, `BLOCK` bytes before its end. The blocks are
plain LLVM vectors, which every processor has an instruction for or a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

BLOCK = 32

_intrinsic: Any = intrinsic

_BYTE, _WORD, _MASK = ir.IntType(8), ir.IntType(64), ir.IntType(BLOCK)
_VECTOR = ir.VectorType(_BYTE, BLOCK)


def as_word(text: bytes) -> np.uint64:
    """Return at most 8 bytes as `word_at` would load them, zeros after them."""
    return np.uint64(int.from_bytes(text.ljust(8, b"\0"), "little"))


def _pointer(context: Any, builder: Any, signature: Any, args: Any, kind: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.bitcast(builder.gep(array.data, [args[1]]), kind.as_pointer())


@_intrinsic
def byte_at(typing_context, buffer, at):  # type: ignore[no-untyped-def]
    """Return the byte at a position."""

    def load(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(context, builder, signature, args, _BYTE))

    return types.uint8(buffer, types.int64), load


@_intrinsic
def word_at(typing_context, buffer, at):  # type: ignore[no-untyped-def]
    """Return the 8 bytes from a position on, the first one lowest."""

    def load(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(context, builder, signature, args, _WORD), align=1)

    return types.uint64(buffer, types.int64), load


def _block(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.load(_pointer(context, builder, signature, args, _VECTOR), align=1)


def _all(value: int) -> ir.Constant:
    return ir.Constant(_VECTOR, [value] * BLOCK)


def _bits(builder: Any, found: Any) -> Any:
    return builder.zext(builder.bitcast(found, _MASK), _WORD)


def _flags(test: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any, Any], Any]:
    """Return the code of a load that tests a block: `test` gives a flag for each of its bytes."""

    def load(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _bits(builder, test(builder, _block(context, builder, signature, args)))

    return load


def _is_one_of(builder: Any, block: Any, first: str, count: int) -> Any:
    """Tell which bytes are among `count` ones from `first` on."""
    return builder.icmp_unsigned("<", builder.sub(block, _all(ord(first))), _all(count))


def _ends_string(builder: Any, block: Any) -> Any:
    quote = builder.icmp_unsigned("==", block, _all(ord('"')))
    backslash = builder.icmp_unsigned("==", block, _all(ord("\\")))
    control = builder.icmp_unsigned("<", block, _all(ord(" ")))
    return builder.or_(builder.or_(quote, backslash), control)


@_intrinsic
def string_stops(typing_context, buffer, at):  # type: ignore[no-untyped-def]
    """Return a bit for each of the 32 bytes from a position on that is a quote, a backslash or a control character."""
    return types.uint64(buffer, types.int64), _flags(_ends_string)


@_intrinsic
def newlines(typing_context, buffer, at):  # type: ignore[no-untyped-def]
    """Return a bit for each of the 32 bytes from a position on that is a newline."""
    test = _flags(lambda builder, block: builder.icmp_unsigned("==", block, _all(ord("\n"))))
    return types.uint64(buffer, types.int64), test


@_intrinsic
def not_ascii(typing_context, buffer, at):  # type: ignore[no-untyped-def]
    """Return a bit for each of the 32 bytes from a position on that is not ASCII."""
    test = _flags(lambda builder, block: builder.icmp_unsigned(">=", block, _all(128)))
    return types.uint64(buffer, types.int64), test


@_intrinsic
def letters(typing_context, buffer, at):  # type: ignore[no-untyped-def]
    """Return a bit for each of the 32 bytes from a position on that is an ASCII letter."""
    test = _flags(lambda builder, block: _is_one_of(builder, builder.or_(block, _all(32)), "a", 26))
    return types.uint64(buffer, types.int64), test


@_intrinsic
def digits(typing_context, buffer, at):  # type: ignore[no-untyped-def]
    """Return a bit for each of the 32 bytes from a position on that is an ASCII digit."""
    test = _flags(lambda builder, block: _is_one_of(builder, block, "0", 10))
    return types.uint64(buffer, types.int64), test


@_intrinsic
def blanks(typing_context, buffer, at):  # type: ignore[no-untyped-def]
    """Return a bit for each of the 32 bytes from a position on that is a blank."""
    test = _flags(lambda builder, block: builder.icmp_unsigned("==", block, _all(ord(" "))))
    return types.uint64(buffer, types.int64), test


@_intrinsic
def tabs_and_line_ends(typing_context, buffer, at):  # type: ignore[no-untyped-def]
    """Return a bit for each of the 32 bytes from a position on that is ASCII white space, but no blank."""
    test = _flags(lambda builder, block: _is_one_of(builder, block, "\t", 5))
    return types.uint64(buffer, types.int64), test


@_intrinsic
def lowest_bit(typing_context, mask):  # type: ignore[no-untyped-def]
    """Return the number of the lowest bit that is set; the mask must not be 0."""

    def count(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), count
