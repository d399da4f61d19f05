"""The inner step of MinHash as plain LLVM vectors.

numba's own loop over the same values becomes vectors of 256 bits; these are 512 bits wide where the processor has them,
which takes three quarters of the time. Other processors get shorter vectors or a loop.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

# Values that are lowered at a time, and the shingles that all permutations are applied to, from registers.
LANES = SHINGLES = 16

_INT = ir.IntType(32)
_VECTOR = ir.VectorType(_INT, LANES)
# Typed as it is used: in a kernel, without the context of its typing.
_intrinsic: Any = intrinsic


@_intrinsic
def lower_minima(typing_context, values, factors, summands, shingles, place):  # type: ignore[no-untyped-def]
    """Lower 16 values from a place on to `factor * shingle + summand`, of each of 16 shingles; all arrays uint32."""

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def pointer(argument: int, at: Any, kind: Any) -> Any:
            array = context.make_array(signature.args[argument])(context, builder, args[argument])
            return builder.bitcast(builder.gep(array.data, [at]), kind.as_pointer())

        minima_at = pointer(0, args[4], _VECTOR)
        minima = builder.load(minima_at, align=4)
        factor, summand = (builder.load(pointer(argument, args[4], _VECTOR), align=4) for argument in (1, 2))
        nothing, first = ir.Constant(_VECTOR, ir.Undefined), ir.Constant(_VECTOR, [0] * LANES)
        for number in range(SHINGLES):
            shingle = builder.load(pointer(3, ir.Constant(ir.IntType(64), number), _INT), align=4)
            copies = builder.shuffle_vector(builder.insert_element(nothing, shingle, _INT(0)), nothing, first)
            value = builder.add(builder.mul(factor, copies), summand)
            minima = builder.select(builder.icmp_unsigned("<", value, minima), value, minima)
        builder.store(minima, minima_at, align=4)
        return context.get_dummy_value()

    return types.void(values, factors, summands, shingles, types.int64), build
