"""What stands where in a block of 64 bytes of text, a bit for each byte, and stores, for numba kernels.

As in `byte_scan`, nothing is checked: the caller keeps positions inside the buffer, `BLOCK` bytes before its end.
"""

# numba calls what makes an intrinsic with its own context and arguments by name.
# ruff: noqa: ARG001

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCK = 64

_intrinsic: Any = intrinsic
_cgutils: Any = cgutils

_BYTE, _NUMBER, _WORD, _MASK = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.IntType(BLOCK)
_VECTOR = ir.VectorType(_BYTE, BLOCK)


def _pointer(context: Any, builder: Any, signature: Any, args: Any, kind: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.bitcast(builder.gep(array.data, [args[1]]), kind.as_pointer())


def _all(value: int) -> ir.Constant:
    return ir.Constant(_VECTOR, [value] * BLOCK)


def _bits(test: Callable[[Any, Any], Any]) -> Any:
    """Return how a test of a block's bytes is compiled to a bit for each."""

    def load(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = builder.load(_pointer(context, builder, signature, args, _VECTOR), align=1)
        return builder.bitcast(test(builder, block), _MASK)

    return load


@_intrinsic
def ascii_word_bits(typing_context, buffer, at):  # type: ignore[no-untyped-def]
    """Return a bit for each of the 64 bytes from a position on that is a letter or a digit of ASCII."""

    def test(builder: Any, block: Any) -> Any:
        letter = builder.sub(builder.or_(block, _all(0x20)), _all(ord("a")))
        digit = builder.sub(block, _all(ord("0")))
        return builder.or_(builder.icmp_unsigned("<", letter, _all(26)), builder.icmp_unsigned("<", digit, _all(10)))

    return types.uint64(buffer, types.int64), _bits(test)


@_intrinsic
def lead_bits(typing_context, buffer, at):  # type: ignore[no-untyped-def]
    """Return a bit for each of the 64 bytes from a position on at which a character of two or more bytes begins."""
    return types.uint64(buffer, types.int64), _bits(
        lambda builder, block: builder.icmp_unsigned(">=", block, _all(0xC0))
    )


@_intrinsic
def apostrophe_bits(typing_context, buffer, at):  # type: ignore[no-untyped-def]
    """Return a bit for each of the 64 bytes from a position on that is U+0027."""
    return types.uint64(buffer, types.int64), _bits(
        lambda builder, block: builder.icmp_unsigned("==", block, _all(ord("'")))
    )


@_intrinsic
def line_end_bits(typing_context, buffer, at):  # type: ignore[no-untyped-def]
    """Return a bit for each of the 64 bytes from a position on that ends a line."""

    def test(builder: Any, block: Any) -> Any:
        newline = builder.icmp_unsigned("==", block, _all(ord("\n")))
        return builder.or_(newline, builder.icmp_unsigned("==", block, _all(ord("\r"))))

    return types.uint64(buffer, types.int64), _bits(test)


@_intrinsic
def prefetch(typing_context, array, at):  # type: ignore[no-untyped-def]
    """Ask for what is at a position of an array, without waiting for it."""

    def ask(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        address = builder.bitcast(builder.gep(array.data, [args[1]]), _BYTE.as_pointer())
        kinds = [_BYTE.as_pointer(), _NUMBER, _NUMBER, _NUMBER]
        kind = ir.FunctionType(ir.VoidType(), kinds)
        function = _cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # To be read, to be kept in all caches, data.
        builder.call(function, [address, _NUMBER(0), _NUMBER(3), _NUMBER(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), ask


@_intrinsic
def put_word(typing_context, buffer, at, word):  # type: ignore[no-untyped-def]
    """Store 8 bytes from a position on, the lowest first."""

    def store(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(context, builder, signature, args, _WORD), align=1)
        return context.get_dummy_value()

    return types.void(buffer, types.int64, types.uint64), store


@_intrinsic
def put_byte(typing_context, buffer, at, byte):  # type: ignore[no-untyped-def]
    """Store the byte at a position."""

    def store(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(context, builder, signature, args, _BYTE))
        return context.get_dummy_value()

    return types.void(buffer, types.int64, types.uint8), store
