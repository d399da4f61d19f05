"""Loads, stores and block tests on byte buffers for numba kernels, without index checks.

numba checks whether each index of an array is negative, which keeps LLVM from vectorizing. Nothing is checked here: the
caller keeps positions inside the buffer, and for blocks the block's size before its end. Blocks are plain LLVM vectors,
for which every processor has an instruction or LLVM a loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCK = 32
LARGE_BLOCK = 64

_Test = Callable[[Any, Any, Callable[[str | int], Any]], Any]

# Typed as it is used: in a kernel, without the context of its typing.
_intrinsic: Any = intrinsic
_cgutils: Any = cgutils

_BYTE, _INT, _WORD = ir.IntType(8), ir.IntType(32), ir.IntType(64)


def _pointer(context: Any, builder: Any, signature: Any, args: Any, kind: Any) -> Any:
    array = context.make_array(signature.args[0])(context, builder, args[0])
    return builder.bitcast(builder.gep(array.data, [args[1]]), kind.as_pointer())


def _accessors(kind: Any, number: Any) -> tuple[Any, Any]:
    """Return the intrinsics (buffer, position) that loads a number and (buffer, position, number) that stores one."""

    def load(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(_pointer(context, builder, signature, args, kind), align=1)

    def store(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.store(args[2], _pointer(context, builder, signature, args, kind), align=1)
        return context.get_dummy_value()

    @_intrinsic
    def number_at(typing_context, buffer, at):  # type: ignore[no-untyped-def]
        return number(buffer, types.int64), load

    @_intrinsic
    def put_number(typing_context, buffer, at, value):  # type: ignore[no-untyped-def]
        return types.void(buffer, types.int64, number), store

    return number_at, put_number


byte_at, put_byte = _accessors(_BYTE, types.uint8)
word_at, put_word = _accessors(_WORD, types.uint64)  # 8 bytes, the first one lowest


@_intrinsic
def prefetch(typing_context, array, at):  # type: ignore[no-untyped-def]
    """Ask for the cache line of an entry of an array, without waiting for it."""

    def ask(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = _pointer(context, builder, signature, args, _BYTE)
        kind = ir.FunctionType(ir.VoidType(), [address.type, _INT, _INT, _INT])
        function = _cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        # For reading, to be kept in all caches, of data rather than code.
        builder.call(function, [address, _INT(0), _INT(3), _INT(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), ask


def _bit_counter(count: Callable[[Any, Any], Any]) -> Any:
    """Return the intrinsic (mask) of an instruction that counts bits."""

    @_intrinsic
    def counted(typing_context, mask):  # type: ignore[no-untyped-def]
        return types.int64(types.uint64), lambda _context, builder, _signature, args: count(builder, args[0])

    return counted


# The number of the lowest bit that is set, 64 if none is; and how many bits are set.
lowest_bit = _bit_counter(lambda builder, mask: builder.cttz(mask, ir.Constant(ir.IntType(1), 0)))
bit_count = _bit_counter(lambda builder, mask: builder.ctpop(mask))


def _block_bits(size: int, test: _Test) -> Any:
    """Return an intrinsic (buffer, position) that returns a bit for each byte of a block that passes a test.

    `test(builder, block, all)` builds the comparison; `all(value)` is a block of one value.
    """
    vector = ir.VectorType(_BYTE, size)

    def constant(value: str | int) -> Any:
        return ir.Constant(vector, [ord(value) if isinstance(value, str) else value] * size)

    def load(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        block = builder.load(_pointer(context, builder, signature, args, vector), align=1)
        flags = builder.bitcast(test(builder, block, constant), ir.IntType(size))
        return flags if size == LARGE_BLOCK else builder.zext(flags, _WORD)

    @_intrinsic
    def bits(typing_context, buffer, at):  # type: ignore[no-untyped-def]
        return types.uint64(buffer, types.int64), load

    return bits


def _equal(character: str) -> _Test:
    return lambda builder, block, all: builder.icmp_unsigned("==", block, all(character))


def _between(first: str, count: int) -> _Test:
    """Test for one of `count` characters from `first` on."""
    return lambda builder, block, all: builder.icmp_unsigned("<", builder.sub(block, all(first)), all(count))


def _at_least(value: int) -> _Test:
    return lambda builder, block, all: builder.icmp_unsigned(">=", block, all(value))


def _either(*tests: _Test) -> _Test:
    def test(builder: Any, block: Any, all: Callable[[str | int], Any]) -> Any:
        flags = tests[0](builder, block, all)
        for other in tests[1:]:
            flags = builder.or_(flags, other(builder, block, all))
        return flags

    return test


def _is_letter(builder: Any, block: Any, all: Callable[[str | int], Any]) -> Any:
    return _between("a", 26)(builder, builder.or_(block, all(32)), all)


# One bit for each of the 32 bytes from a position on.
not_ascii = _block_bits(BLOCK, _at_least(0x80))
letters = _block_bits(BLOCK, _is_letter)
digits = _block_bits(BLOCK, _between("0", 10))
blanks = _block_bits(BLOCK, _equal(" "))
tabs_and_line_ends = _block_bits(BLOCK, _between("\t", 5))
# Control characters, and the first bytes of characters outside ASCII that may be white space.
other_space_leads = _block_bits(BLOCK, _either(_between("\0", 32), _equal("\xc2"), _between("\xe1", 3)))

# One bit for each of the 64 bytes from a position on: ASCII letters and digits, first bytes of longer characters, ...
ascii_word_bits = _block_bits(LARGE_BLOCK, _either(_is_letter, _between("0", 10)))
lead_bits = _block_bits(LARGE_BLOCK, _at_least(0xC0))
apostrophe_bits = _block_bits(LARGE_BLOCK, _equal("'"))
line_end_bits = _block_bits(LARGE_BLOCK, _either(_equal("\n"), _equal("\r")))
