"""Pairs of bf16 vectors, widened and packed where they lie.

One instruction widens the lower four elements of each 16 bytes, one the upper four, and one packs
what was computed of them, in the order in which it was. Halves of a register that are widened each
for itself take twice as many, and as many stores. So lanes are in another order meanwhile: a pair's
first copy has lanes 0 to 3 and 8 to 11, its second the others. That is for kernels that compute
lane by lane, of nothing but such pairs and of what all lanes have in common.
"""

from __future__ import annotations

from collections.abc import Sequence

from nearhint_compiler.analysis.accesses import access
from nearhint_compiler.codegen.c.body import Body, Part
from nearhint_compiler.codegen.c.primitive import AVX2, Row
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.codegen.c.turn import PAIR
from nearhint_compiler.ir import nodes as ir

_LANES = 8
"""Of a vector of which a pair, and its f32 numbers, are a register of 256 bits."""


def _widened(name: str, instruction: str) -> Row:
    value = f"_mm256_{instruction}_epi16(_mm256_setzero_si256(), (__m256i)v)"
    text = f"static inline vf32 {name}_bf16(pair_bf16 v) {{ return (vf32){value}; }}\n"
    return Row(name, text, ("bf16",), AVX2, ("pair bf16",), (16 * _LANES,))


HALVES_ROWS: tuple[Row, ...] = (
    _widened("low", "unpacklo"),
    _widened("high", "unpackhi"),
    Row(
        "read_pair",
        "static inline pair_bf16 read_pair_bf16(const uint16_t *p)\n"
        "{\n    return (pair_bf16)_mm256_loadu_si256((const __m256i *)p);\n}\n",
        ("bf16",),
        AVX2,
        ("pair bf16",),
        (16 * _LANES,),
    ),
    Row(
        "packed",
        "static inline pair_bf16 packed_bf16(vf32 low, vf32 high)\n"
        "{\n    return (pair_bf16)_mm256_packus_epi32(upper_f32(low), upper_f32(high));\n}\n",
        ("bf16",),
        AVX2,
        ("pair bf16", "upper f32"),
        (16 * _LANES,),
    ),
)


def can_widen_pairs(body: Body, turned: Sequence[int]) -> bool:
    """Whether lanes may be in another order: see above; what is in `turned` is in pairs already."""
    places = range(len(body.kernel.body))
    return body.lanes == _LANES and all(_is_fit(body, place, turned) for place in places)


def _is_fit(body: Body, position: int, turned: Sequence[int]) -> bool:
    nodes = body.kernel.body
    users = [node for node in nodes if position in ir.operands_of(node)]
    match node := nodes[position]:
        case ir.Store(param, index, value):
            is_pair = access(index, body.lane).is_contiguous and body.in_lanes(value)
            is_bf16 = body.kernel.params[param].dtype == "bf16"
            return is_pair and is_bf16 and _is_rounded(body, nodes[value])
        case _ if not body.in_lanes(position):
            return True
        case ir.Load(_, index):
            is_pair = position in turned or access(index, body.lane).is_contiguous
            return is_pair and body.dtypes[position] == "bf16" and all(map(_is_widened, users))
        case ir.Op():
            stays = all(isinstance(user, ir.Store) or _is_widened(user) for user in users)
            return body.dtypes[position] != "bf16" or (_is_rounded(body, node) and stays)
        case _:
            return False


def _is_rounded(body: Body, node: ir.BodyNode) -> bool:
    """Whether it is a cast from f32 to bf16."""
    if not isinstance(node, ir.Op) or (node.name, node.dtype) != ("cast", "bf16"):
        return False
    return body.dtypes[node.operands[0]] == "f32"


def _is_widened(node: ir.BodyNode) -> bool:
    """Whether it is a cast to f32."""
    return isinstance(node, ir.Op) and (node.name, node.dtype) == ("cast", "f32")


def write_widened(
    writer: Writer,
    body: Body,
    positions: Sequence[int],
    part: Part,
    turned: Sequence[int],
    pairs: Sequence[str],
) -> None:
    """The nodes at `positions`, which are in lanes, of one row.

    `pairs` are the names, but for the load's, of the pairs that a row of what is turned has.
    """
    prelude, nodes = body.prelude, body.kernel.body
    low, high, packed = (prelude.use(name, "bf16") for name in ("low", "high", "packed"))
    values: list[int] = []
    for position in positions:
        node = nodes[position]
        if isinstance(node, ir.Load):
            for number, pair in enumerate(pairs):
                value = f"square{position}{pair}[l]"
                if position not in turned:
                    read = prelude.use("read_pair", "bf16")
                    value = f"{read}({body.place(position, PAIR * number)})"
                writer.line(f"const pair_bf16 pair{position}_{number} = {value};")
        elif isinstance(node, ir.Op) and body.dtypes[position] != "bf16":
            values.append(position)
            source = node.operands[0]
            if isinstance(nodes[source], ir.Load) and body.dtypes[source] == "bf16":
                for copy in range(part.copies):
                    widen = (low, high)[copy % PAIR]
                    body.values[position, copy] = f"{widen}(pair{source}_{copy // PAIR})"
    body.write(writer, values, part)
    for position in positions:
        node = nodes[position]
        if isinstance(node, ir.Store):
            rounded = nodes[node.value]
            assert isinstance(rounded, ir.Op)
            for copy in range(0, part.copies, PAIR):
                names = [body.name(rounded.operands[0], copy + half) for half in range(PAIR)]
                place = body.place(position, copy)
                writer.line(f"store_pair_bf16({place}, {packed}({', '.join(names)}));")
