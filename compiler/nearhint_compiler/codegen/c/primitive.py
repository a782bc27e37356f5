"""Primitives of the C prelude: what a row is, and the choice of rows for a machine.

In a row's text `$V` is the vector type of its dtype, `$E` the element in memory, `$U` the type that
loads and stores go through, `$I` the integer vector of the same shape, `$T` the dtype and `$W` the
lanes; `$M`, `$S`, `$Y`, `$K`, `$X`, `$H`, `$R` spell intrinsics: prefix, suffix, suffix with a
sign, mask type, register type, integer register of half the width, and bits; `$N` and `$C` are
prefix and bits of a vector of 32-bit numbers.
`$XORn` lists the lanes with bit n flipped and `$IOTA` lists them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from string import Template

from nearhint_compiler.errors import Unsupported
from nearhint_rules.program import DTYPES

PORTABLE, AVX2, AVX512, AVX512_BF16 = range(4)
_AVX512 = ("avx2", "avx512bw", "avx512dq", "avx512f", "avx512vl", "f16c", "fma")

FEATURES: Mapping[int, tuple[str, ...]] = {
    PORTABLE: (),
    AVX2: ("avx2", "f16c", "fma"),
    AVX512: _AVX512,
    AVX512_BF16: (*_AVX512, "avx512_bf16"),
}
"""The instruction sets that each level uses; the level of a Target is the highest it has."""

ELEMENTS: Mapping[str, str] = {
    "f64": "double", "f32": "float", "f16": "uint16_t", "bf16": "uint16_t",
    "f8e4m3fn": "uint8_t", "f8e5m2": "uint8_t",
    "i64": "int64_t", "i32": "int32_t", "i16": "int16_t", "i8": "int8_t", "u8": "uint8_t",
    "bool": "uint8_t",
}  # fmt: skip
"""The element of each dtype in memory. Low precision floats are their bits."""

_INTEGER_TWIN: Mapping[str, str] = {
    "f64": "i64", "f32": "i32", "f16": "i16", "bf16": "i16",
    "f8e4m3fn": "i8", "f8e5m2": "i8", "i64": "i64", "i32": "i32",
    "i16": "i16", "i8": "i8", "u8": "i8", "bool": "i32",
}  # fmt: skip
_SUFFIX: Mapping[str, str] = {
    "f64": "pd", "f32": "ps", "f16": "epi16", "bf16": "epi16",
    "f8e4m3fn": "epi8", "f8e5m2": "epi8", "i64": "epi64", "i32": "epi32",
    "i16": "epi16", "i8": "epi8", "u8": "epi8", "bool": "epi32",
}  # fmt: skip
_PREFIX: Mapping[int, str] = {128: "_mm", 256: "_mm256", 512: "_mm512"}
LINE_BYTES = 64
"""Of a cache."""
ALL = tuple(DTYPES)


@dataclass(frozen=True, slots=True)
class Row:
    """One way to write the primitive `name` for `dtypes` at `level` or above.

    `needs` are other primitives ("sel f32"; "sel $T" for the row's own dtype). `bits` are the
    register widths that a row with intrinsics exists for.
    """

    name: str
    text: str | Callable[[Shape], str]
    dtypes: Sequence[str] = ALL
    level: int = PORTABLE
    needs: tuple[str, ...] = ()
    bits: tuple[int, ...] = (128, 256, 512)


@dataclass(frozen=True, slots=True)
class Shape:
    """Lanes of a vector and the level of the machine."""

    lanes: int
    level: int

    def bits(self, dtype: str) -> int:
        """The width of a vector of `dtype`."""
        return self.lanes * vector_bytes(dtype) * 8


def vector_bytes(dtype: str) -> int:
    """Bytes of an element of `dtype` in a vector; a bool is a 32-bit mask there."""
    return 4 if dtype == "bool" else DTYPES[dtype]


def level_of(features: Sequence[str]) -> int:
    """The highest level whose instruction sets are all among `features`."""
    return max(level for level, needed in FEATURES.items() if set(needed) <= set(features))


class Prelude:
    """Collects the primitives that a kernel uses and prints them, each after what it needs."""

    def __init__(self, shape: Shape, rows: Mapping[str, Sequence[Row]]) -> None:
        self.shape = shape
        self._rows = rows
        self._used: dict[tuple[str, str], Row] = {}

    def use(self, name: str, dtype: str) -> str:
        """The C function for primitive `name` at `dtype`; raises `Unsupported` if there is none."""
        if (name, dtype) not in self._used:
            row = self._choose(name, dtype)
            for need in row.needs:
                needed, _, at = need.partition(" ")
                self.use(needed, dtype if at == "$T" else at)
            self._used[name, dtype] = row
        return f"{name}_{dtype}"

    def _choose(self, name: str, dtype: str) -> Row:
        bits = self.shape.bits(dtype)
        has_registers = bits <= 256 or self.shape.level >= AVX512
        for row in self._rows.get(name, ()):
            fits = row.level == PORTABLE or (bits in row.bits and has_registers)
            if dtype in row.dtypes and row.level <= self.shape.level and fits:
                return row
        raise Unsupported(f"no {name} for {dtype} in C")

    def used(self) -> frozenset[tuple[str, str]]:
        """The (name, dtype) of every primitive so far."""
        return frozenset(self._used)

    def text(self) -> str:
        """Includes, vector types and the functions that were used."""
        intrinsics = any(row.level > PORTABLE for row in self._used.values())
        parts = [
            "#include <stdint.h>\n#include <string.h>\n",
            "#include <immintrin.h>\n" if intrinsics else "",
            "\n",
            *(self._types(dtype) for dtype in ELEMENTS),
            SHUFFLE,
        ]
        for (_, dtype), row in self._used.items():
            text = row.text if isinstance(row.text, str) else row.text(self.shape)
            parts.append("\n" + Template(text).substitute(self._spelling(dtype)))
        return "".join(parts)

    def _types(self, dtype: str) -> str:
        if dtype == "bool":
            return "typedef vi32 vbool;\n"
        size = DTYPES[dtype]
        wide, element = size * self.shape.lanes, ELEMENTS[dtype]
        unsigned = ""
        if dtype in ("i32", "i64"):
            unsigned = f"typedef u{element} vu{size * 8} __attribute__((vector_size({wide})));\n"
        return (
            f"typedef {element} v{dtype} __attribute__((vector_size({wide})));\n"
            f"typedef {element} u{dtype}"
            f" __attribute__((vector_size({wide}), aligned({size}), may_alias));\n" + unsigned
        )

    def _spelling(self, dtype: str) -> dict[str, str]:
        lanes = range(self.shape.lanes)
        bits = self.shape.bits(dtype)
        register = {"f64": "d", "f32": ""}.get(dtype, "i")
        twin = _INTEGER_TWIN[dtype]
        flipped = {
            f"XOR{bit}": ", ".join(str(lane ^ bit) for lane in lanes) for bit in (1, 2, 4, 8)
        }
        return {
            "V": f"v{dtype}",
            "E": ELEMENTS[dtype],
            "U": f"u{dtype}",
            "I": "vbool" if dtype == "bool" else f"v{twin}",
            "B": f"{DTYPES[twin] * 8}",
            "T": dtype,
            "W": str(self.shape.lanes),
            "M": _PREFIX.get(bits, ""),
            "S": _SUFFIX[dtype],
            "Y": "epu8" if dtype == "u8" else _SUFFIX[dtype],
            "K": "__mmask16" if self.shape.lanes == 16 else "__mmask8",
            "X": f"__m{bits}{register}",
            "R": str(bits),
            "N": _PREFIX.get(32 * self.shape.lanes, ""),
            "C": str(32 * self.shape.lanes),
            "H": f"__m{max(bits // 2, 128)}i",
            "IOTA": ", ".join(map(str, lanes)),
            **flipped,
        }


SHUFFLE = """
#ifdef __clang__
#define SHUFFLE(type, v, ...) __builtin_shufflevector(v, v, __VA_ARGS__)
#define SHUFFLE2(type, v, w, ...) __builtin_shufflevector(v, w, __VA_ARGS__)
#else
#define SHUFFLE(type, v, ...) __builtin_shuffle(v, (type){__VA_ARGS__})
#define SHUFFLE2(type, v, w, ...) __builtin_shuffle(v, w, (type){__VA_ARGS__})
#endif
"""
