"""Body nodes in C: what each depends on, and the statement that computes it for some lanes.

A loop nest vectorises along one loop variable, the lane variable. A node that depends on it has
`copies` unrolled copies in a loop, `v7_0`, `v7_1`, ...; any other node has one, `v7`, all of whose
lanes are equal. A tail is a `Part` whose `count` names the C variable with its valid lanes.
Where rows are short, copies may be of neighbouring rows instead: see `Body.abreast`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from nearhint_compiler.analysis.accesses import Clamped, access, clamped, shifted
from nearhint_compiler.analysis.apart import apart, stored_together
from nearhint_compiler.analysis.jumps import leading_to_jumps
from nearhint_compiler.analysis.loops import variables_of
from nearhint_compiler.analysis.narrow_sums import widened_terms
from nearhint_compiler.analysis.positions import as_first_and_step, positions_of
from nearhint_compiler.codegen.c import ops as c_ops
from nearhint_compiler.codegen.c.apart import reading
from nearhint_compiler.codegen.c.homes import homes_of
from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.primitive import ELEMENTS, LINE_BYTES, Prelude, vector_bytes
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.expr import Expr

_REPEATED = {2.0: "$x * $x", 3.0: "$x * $x * $x", 1.0: "$x", -1.0: "1 / $x"}


_LANES_THAT: Mapping[str, tuple[str, int, str]] = {
    "lt": ("", 0, "lanes_below"), "le": ("", 1, "lanes_below"), "eq": ("", 0, "lane_at"),
    "ge": ("~", 0, "lanes_below"), "gt": ("~", 1, "lanes_below"), "ne": ("~", 0, "lane_at"),
}  # fmt: skip
"""Comparison of l + a with b -> (which lanes, n, a primitive): it names lanes by b - a + n, those
for which the comparison holds, or with ~ all others."""
_SWAPPED: Mapping[str, str] = {
    "lt": "gt", "le": "ge", "gt": "lt", "ge": "le", "eq": "eq", "ne": "ne",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Part:
    """Which lanes a piece of code computes.

    `copies` vectors from the lane variable on. `counts[u]` is the C expression for the number of
    valid lanes of copy u, or "" where all are valid.
    """

    copies: int
    counts: tuple[str, ...]

    @classmethod
    def full(cls, copies: int) -> Part:
        """`copies` vectors without a tail."""
        return cls(copies, ("",) * copies)

    @classmethod
    def tail(cls, count: str) -> Part:
        """One vector of which `count` lanes are valid."""
        return cls(1, (count,))


UNIFORM = Part.full(1)
"""For nodes that do not depend on the lane variable."""


_OF_NUMBERS: Mapping[str, str] = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "cast": "{0}", "lt": "{0} < {1}",
    "ge": "{0} >= {1}", "where": "{0} ? {1} : {2}",
}  # fmt: skip
"""What places are made of: eager's count from the end, and rows of blocks."""


@dataclass(slots=True)
class Body:
    """The nodes of one kernel, and how to write each in C.

    `lane` is the loop variable that lanes run along. `places` has, for a load whose data were
    copied to where lanes are contiguous, and for what a pointer follows, the C expression of the
    place of the lane variable;
    `values`, for a copy (node, copy) that is in a register, its vector. `homes` are the
    outputs that values of a row are kept in, instead of a stash. `abreast`, if it is not "", is the
    loop variable that copies are along instead of the lane variable. `terms` are the casts that are
    written where their results are added, to as many bits as that takes. Stores are `joined` that
    have all elements between theirs; `positions` are what is computed of positions alone. Vectors
    of a line are read `in_halves` where that is set.
    """

    kernel: ir.Kernel
    prelude: Prelude
    lane: str
    places: dict[int, str] = field(default_factory=dict[int, str])
    values: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    abreast: str = ""
    dtypes: tuple[str, ...] = field(init=False)
    levels: tuple[int, ...] = field(init=False)
    variables: tuple[frozenset[str], ...] = field(init=False)
    homes: Mapping[int, tuple[int, Expr]] = field(init=False)
    leading_to_jumps: frozenset[int] = field(init=False)
    terms: frozenset[int] = field(init=False)
    joined: Mapping[int, tuple[int, ...]] = field(init=False)
    positions: Mapping[int, Expr] = field(init=False)
    in_halves: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self.dtypes = ir.dtypes_of(self.kernel)
        self.levels = ir.levels(self.kernel)
        self.variables = variables_of(self.kernel)
        self.leading_to_jumps = leading_to_jumps(self.kernel)
        self.terms = widened_terms(self.kernel)
        self.joined = stored_together(self.kernel, self.lane)
        self.positions = positions_of(self.kernel)
        self.homes = homes_of(self.kernel, self.lane) if self.lane.startswith("r") else {}

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        return self.prelude.shape.lanes

    def in_lanes(self, position: int) -> bool:
        """Whether the node differs between lanes."""
        return self.lane in self.variables[position]

    def name(self, position: int, copy: int) -> str:
        """The C variable of a node's copy."""
        return f"v{position}_{copy}" if self._has_copies(position) else f"v{position}"

    def copies(self, position: int, part: Part) -> int:
        """How many vectors the node has in `part`."""
        return part.copies if self._has_copies(position) else 1

    def _has_copies(self, position: int) -> bool:
        return (self.abreast or self.lane) in self.variables[position]

    def _at(self, index: Expr, copy: int) -> Expr:
        """`index` of a copy's first lane."""
        if self.abreast:
            return shifted(index, self.abreast, copy)
        return shifted(index, self.lane, copy * self.lanes)

    def invariants(self) -> list[int]:
        """Nodes that depend on no loop, and on no reduction either."""
        return [
            position
            for position, node in enumerate(self.kernel.body)
            if not self.variables[position]
            and self.levels[position] == 0
            and not isinstance(node, ir.Writing | ir.Former)
        ]

    def write(self, writer: Writer, positions: Iterable[int], part: Part) -> None:
        """Statements for the nodes at `positions`, all copies; not for reduces."""
        ordered = sorted(set(positions) - self.terms)
        values = [place for place in ordered if not isinstance(self.kernel.body[place], ir.Writing)]
        here = frozenset(values)
        for position in values:
            node = self.kernel.body[position]
            is_read = (position, 0) not in self.values
            if isinstance(node, ir.Gather) and is_read and not self._has_rows(node):
                writer.line(f"const int64_t row{position} = {self._row(node, 0, '0')};")
            for copy in range(self.copies(position, part)):
                text = self._value(position, node, copy, part.counts[copy], here)
                vector = f"v{self.dtypes[position]}"
                writer.line(f"const {vector} {self.name(position, copy)} = {text};")
        joined = {first: each for first, each in self.joined.items() if {*ordered} >= {*each}}
        others = {place for each in joined.values() for place in each}
        for position in ordered:
            node = self.kernel.body[position]
            if isinstance(node, ir.Store):
                for copy in range(self.copies(position, part)):
                    count = part.counts[copy]
                    if count or position not in others:
                        self._store(writer, position, node, copy, count)
                    elif position in joined:
                        self._store_together(writer, joined[position], copy)
            if isinstance(node, ir.Scatter):
                for copy in range(self.copies(position, part)):
                    self._scatter(writer, node, copy, part.counts[copy])

    def _value(
        self, position: int, node: ir.BodyNode, copy: int, count: str, here: frozenset[int]
    ) -> str:
        if (position, copy) in self.values:
            return self.values[position, copy]
        dtype = self.dtypes[position]
        match node:
            case ir.Load() if position in self.places:
                return self.contiguous(self._place(position, copy), dtype, count)
            case ir.Load(param, index):
                return self._load(param, index, dtype, copy, count)
            case ir.Gather():
                return self._gathered(position, node, copy, count)
            case ir.Scalar(param):
                return f"{self.prelude.use('splat', dtype)}(*in{param})"
            case ir.Const(_, bits):
                return self._constant(dtype, bits)
            case ir.Iota(index):
                return self._iota(index, copy)
            case ir.Op(_, _, operands):
                names = [self.name(operand, copy) for operand in operands]
                given = [self.dtypes[operand] for operand in operands]
                return (
                    self._shortcut(node, position, names)
                    or self._choice(node, names)
                    or self._position(node, copy, names)
                    or self._float_of_position(node, copy)
                    or self._rounding(node, copy, here)
                    or c_ops.expression(node, names, given, self.prelude)
                )
            case ir.Scan(kind, _, operand):
                in_rows = self.lane.startswith("r")
                function = self.prelude.use(f"{'running' if in_rows else 'step'}_{kind}", dtype)
                carry = f"carry{position}" if in_rows else f"carry{position}_{copy}"
                return f"{function}({self.name(operand, copy)}, &{carry})"
            case _:
                raise AssertionError(node)

    def _shortcut(self, node: ir.Op, position: int, names: Sequence[str]) -> str:
        """Small powers, and divisions of many lanes by one number; else "".

        The number is a power's constant exponent, or a divisor that is equal in all lanes. A
        quotient that something jumps from has all its digits.
        """
        if node.name == "pow":
            exponent = self.kernel.body[node.operands[1]]
            if isinstance(exponent, ir.Const):
                text = _REPEATED.get(_float_of(exponent.dtype, exponent.bits), "")
                return text.replace("$x", names[0])
        if node.name == "div" and node.dtype == "f32" and position not in self.leading_to_jumps:
            top, bottom = node.operands
            if self.in_lanes(top) and not self.in_lanes(bottom):
                return f"{self.prelude.use('quotient', 'f32')}({names[0]}, {names[1]})"
        return ""

    def _choice(self, node: ir.Op, names: Sequence[str]) -> str:
        """What is chosen for all lanes at once, so that nothing has to load the other; or ""."""
        if node.name != "where" or self.in_lanes(node.operands[0]):
            return ""
        return f"{names[0]}[0] ? {names[1]} : {names[2]}"

    def _position(self, node: ir.Op, copy: int, names: Sequence[str]) -> str:
        """A comparison of the lanes' positions with what is one for all; else "".

        It takes no vectors of positions in 64 bits, which are wider than a register.
        """
        if node.name not in _LANES_THAT:
            return ""
        (left, right), name = node.operands, node.name
        if not self.in_lanes(left):
            left, right, name, names = right, left, _SWAPPED[name], names[::-1]
        position, size = self.positions.get(left), self.positions.get(right)
        if self.in_lanes(right) or position is None:
            return ""
        if size is not None and as_first_and_step(position, self.lane) == ex.Int(-1):
            position, size, name = ex.mul(-1, position), ex.mul(-1, size), _SWAPPED[name]
        if not access(position, self.lane).is_contiguous:
            return ""
        turned, further, function = _LANES_THAT[name]
        here = self._at(position, copy)
        if size is None:
            limit = f"{self.prelude.use('bounded', 'i64')}({names[1]}[0])"
            count = f"{limit} - ({to_c(ex.sub(here, further))})"
        else:
            count = to_c(ex.add(ex.sub(size, here), further))
        return f"{turned}{self.prelude.use(function, 'bool')}({count})"

    def _float_of_position(self, node: ir.Op, copy: int) -> str:
        """A position in f32, without vectors of 64 bits where 32 are enough; or ""."""
        position = self.positions.get(node.operands[0])
        if (node.name, node.dtype) != ("cast", "f32") or position is None:
            return ""
        step = as_first_and_step(position, self.lane)
        if step is None:
            return ""
        first = to_c(self._at(position, copy))
        return f"{self.prelude.use('position', 'f32')}({first}, {to_c(step)})"

    def _rounding(self, node: ir.Op, copy: int, here: frozenset[int]) -> str:
        """A cast from f32 to bf16 and back without packing, where its operand is computed here."""
        inner = self.kernel.body[node.operands[0]]
        if (
            (node.name, node.dtype, self.dtypes[node.operands[0]]) == ("cast", "f32", "bf16")
            and isinstance(inner, ir.Op)
            and inner.name == "cast"
            and self.dtypes[inner.operands[0]] == "f32"
            and inner.operands[0] in here
        ):
            return f"{self.prelude.use('round_bf16', 'f32')}({self.name(inner.operands[0], copy)})"
        return ""

    def _load(self, param: int, index: Expr, dtype: str, copy: int, count: str) -> str:
        moves = access(index, self.lane)
        here = self._at(index, copy)
        if moves.is_uniform:
            return f"{self.prelude.use('splat', dtype)}(in{param}[{to_c(here)}])"
        if moves.stride is None:
            within = clamped(here, self.lane)
            if within is not None:
                return self._within(f"in{param}", within, dtype, count)
            return self._irregular(
                dtype, f"in{param}[{to_c(self._lane_index(index, copy))}]", count
            )
        place = f"in{param} + {to_c(here)}"
        if moves.is_contiguous:
            return self.contiguous(place, dtype, count)
        return self._apart(place, index, moves.stride, dtype, count)

    def _apart(self, place: str, index: Expr, stride: Expr, dtype: str, count: str) -> str:
        """A vector of the elements `stride` apart from `place` on."""
        if not count and (known := apart(index, self.lane)):
            return f"{self.prelude.use(reading(known), dtype)}({place})"
        gather = self.prelude.use("gather_n", dtype)
        return f"{gather}({place}, {to_c(stride)}, {count or self.lanes})"

    def _has_rows(self, node: ir.Gather) -> bool:
        """Whether lanes or copies read rows of their own; else one place is named for all."""
        return self.in_lanes(node.place) or self._has_copies(node.place)

    def _row(self, node: ir.Gather, copy: int, lane: str) -> str:
        """How far the row that a lane's place names is from the first."""
        place = "" if self._has_rows(node) else self._number(node.place)
        place = place or f"{self.name(node.place, copy)}[{lane}]"
        return f"named({place}, {to_c(node.size)}, outside) * ({to_c(node.stride)})"

    def _number(self, position: int) -> str:
        """A place that is one for all lanes, as a number of C; "" where it is made of more.

        Vectors of as many 64-bit places as there are lanes are wider than registers.
        """
        node, dtype = self.kernel.body[position], self.dtypes[position]
        match node:
            case ir.Load(param, index) if position not in self.places and dtype in ("i64", "i32"):
                return f"(int64_t)in{param}[{to_c(index)}]"
            case ir.Iota() | ir.Const():
                place = ir.place_of(node)
                return "" if place is None else f"(int64_t)({to_c(place)})"
            case ir.Op("cast", "bool"):
                return ""
            case ir.Op(name, "i64" | "bool", operands) if name in _OF_NUMBERS:
                given = [self._number(operand) for operand in operands]
                return f"({_OF_NUMBERS[name].format(*given)})" if all(given) else ""
            case _:
                return ""

    def _gathered(self, position: int, node: ir.Gather, copy: int, count: str) -> str:
        """As a load, from a row that is the same for all lanes; else lane by lane."""
        moves, dtype = access(node.index, self.lane), self.dtypes[position]
        here = to_c(self._at(node.index, copy))
        each_alone = self.in_lanes(node.place) or moves.stride is None
        row = f"row{position}"
        if self._has_rows(node):
            row = self._row(node, copy, "l" if each_alone else "0")
        if each_alone or moves.stride is None:
            along = to_c(self._lane_index(node.index, copy))
            return self._irregular(dtype, f"in{node.param}[{along} + {row}]", count)
        if moves.is_uniform:
            return f"{self.prelude.use('splat', dtype)}(in{node.param}[{here} + {row}])"
        start = f"in{node.param} + {here} + {row}"
        if moves.is_contiguous:
            return self.contiguous(start, dtype, count)
        return self._apart(start, node.index, moves.stride, dtype, count)

    def _within(self, param: str, index: Clamped, dtype: str, count: str) -> str:
        low = "INT64_MIN" if index.low is None else to_c(index.low)
        high = "INT64_MAX" if index.high is None else to_c(index.high)
        bounds = f"{to_c(index.first)}, {low}, {high}, {count or self.lanes}"
        load = self.prelude.use("load_within", dtype)
        return f"{load}({param} + {to_c(index.base)}, {bounds})"

    def contiguous(self, place: str, dtype: str, count: str) -> str:
        """A vector of the elements from `place` on, of which `count` are there, if it is not ""."""
        if count:
            return f"{self.prelude.use('load_n', dtype)}({place}, {count})"
        is_line = self.lanes * vector_bytes(dtype) == LINE_BYTES and dtype != "bool"
        function = "load_halves" if self.in_halves and is_line else "load"
        return f"{self.prelude.use(function, dtype)}({place})"

    def _lane_index(self, index: Expr, copy: int) -> Expr:
        lane = ex.add(ex.symbol(self.lane), ex.symbol("l"))
        return ex.substitute(self._at(index, copy), {self.lane: lane})

    def _irregular(self, dtype: str, element: str, count: str) -> str:
        vector = f"v{dtype}"
        element = f"-(int32_t)({element} != 0)" if dtype == "bool" else element
        return (
            f"({{ {vector} lanes = {{0}}; for (int l = 0; l < {count or self.lanes}; l++)"
            f" lanes[l] = {element}; lanes; }})"
        )

    def _iota(self, index: Expr, copy: int) -> str:
        moves = access(index, self.lane)
        if moves.stride is None:
            return self._irregular("i64", to_c(self._lane_index(index, copy)), "")
        here = to_c(self._at(index, copy))
        if moves.is_uniform:
            return f"{self.prelude.use('splat', 'i64')}({here})"
        return f"{self.prelude.use('count_up', 'i64')}({here}, {to_c(moves.stride)})"

    def _constant(self, dtype: str, bits: int) -> str:
        if dtype == "bool":
            return f"{self.prelude.use('splat', 'bool')}({bits})"
        if dtype in ir.LOW_PRECISION:
            return f"{self.prelude.use('splat', dtype)}({bits:#x})"
        splat = self.prelude.use("splat", dtype)
        if dtype in ir.FLOATS:
            value = _float_of(dtype, bits)
            if value - value != 0:
                return f"{self.prelude.use('from_bits', dtype)}({bits:#x})"
            return f"{splat}({value!r}{'f' if dtype == 'f32' else ''})"
        width = vector_bytes(dtype) * 8
        signed = bits - (1 << width) if dtype != "u8" and bits >> (width - 1) else bits
        if signed == -(2**63):
            return f"{splat}(INT64_MIN)"
        return f"{splat}({f'INT64_C({signed})' if dtype == 'i64' else signed})"

    def place(self, position: int, copy: int) -> str:
        """Where a copy of a load or a store begins that is contiguous along lanes, in C."""
        if position in self.places:
            return self._place(position, copy)
        node = self.kernel.body[position]
        assert isinstance(node, ir.Load | ir.Store)
        name = f"out{node.param}" if isinstance(node, ir.Store) else f"in{node.param}"
        return f"{name} + {to_c(self._at(node.index, copy))}"

    def _place(self, position: int, copy: int) -> str:
        offset = copy * self.lanes
        return f"{self.places[position]} + {offset}" if offset else self.places[position]

    def _store(self, writer: Writer, position: int, node: ir.Store, copy: int, count: str) -> None:
        dtype = self.kernel.params[node.param].dtype
        value = self.name(node.value, copy)
        moves = access(node.index, self.lane)
        if moves.is_uniform:
            element = f"{value}[0] & 1" if dtype == "bool" else f"{value}[0]"
            writer.line(f"out{node.param}[{to_c(self._at(node.index, copy))}] = {element};")
            return
        place = self.place(position, copy)
        if moves.is_contiguous:
            function = self.prelude.use("store_n" if count else "store", dtype)
            writer.line(f"{function}({place}, {value}{f', {count}' if count else ''});")
        elif moves.stride is not None:
            function = self.prelude.use("scatter_n", dtype)
            stride = to_c(moves.stride)
            writer.line(f"{function}({place}, {stride}, {value}, {count or self.lanes});")
        else:
            element = f"{value}[l] & 1" if dtype == "bool" else f"{value}[l]"
            index = to_c(self._lane_index(node.index, copy))
            writer.line(f"for (int l = 0; l < {count or self.lanes}; l++)")
            writer.line(f"    out{node.param}[{index}] = {element};")

    def _store_together(self, writer: Writer, places: Sequence[int], copy: int) -> None:
        """Full vectors of stores that have all elements between theirs."""
        nodes = [self.kernel.body[place] for place in places]
        names = [self.name(node.value, copy) for node in nodes if isinstance(node, ir.Store)]
        function = self.prelude.use(f"together{len(names)}", self.dtypes[places[0]])
        writer.line(f"{function}({self.place(places[0], copy)}, {', '.join(names)});")

    def scattered_at(self, node: ir.Scatter, copy: int) -> str:
        """Where a copy of a scatter is in its output, at the place `at`, in C."""
        return f"{to_c(self._at(node.index, copy))} + at * ({to_c(node.stride)})"

    def _scatter(self, writer: Writer, node: ir.Scatter, copy: int, count: str) -> None:
        """Brings a vector together with what is there, which are neighbours, or one element."""
        place = f"out{node.param} + {self.scattered_at(node, copy)}"
        there = self.contiguous(place, node.dtype, count)
        reduce = ir.Reduce(node.kind, node.dtype, node.value)
        value = self.combine(reduce, there, self.name(node.value, copy))
        function = self.prelude.use("store_n" if count else "store", node.dtype)
        writer.line(f"{function}({place}, {value}{f', {count}' if count else ''});")

    def identity(self, reduce: ir.Reducing) -> str:
        """The neutral element of a reduction as a vector."""
        value = _IDENTITY[reduce.kind]
        dtype = reduce.dtype
        if dtype == "bool":
            return f"{self.prelude.use('splat', 'bool')}({int(value > 0)})"
        if value not in (0, 1):
            return self._constant(dtype, _extreme_bits(dtype, largest=value > 0))
        splat = self.prelude.use("splat", dtype)
        return f"{splat}({value:.0f})"

    def combine(self, reduce: ir.Reduce, left: str, right: str) -> str:
        """One step of a reduction."""
        match reduce.kind:
            case "sum":
                return f"{left} + {right}"
            case "prod":
                return f"{left} * {right}"
            case "any":
                return f"{left} | {right}"
            case "all":
                return f"{left} & {right}"
            case _:
                return f"{self.prelude.use(reduce.kind, reduce.dtype)}({left}, {right})"


def reduction_loops(body: Body) -> list[str]:
    """The reduction's loop variables, outermost first; a lane variable is the innermost."""
    names = [f"r{number}" for number in range(len(body.kernel.reduction))]
    return sorted(names, key=lambda name: name == body.lane)


_IDENTITY: Mapping[str, float] = {
    "sum": 0, "prod": 1, "max": float("-inf"), "min": float("inf"), "any": 0, "all": 1,
}  # fmt: skip


def _float_of(dtype: str, bits: int) -> float:
    if dtype == "f64":
        return float(struct.unpack("<d", struct.pack("<Q", bits))[0])
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


def _extreme_bits(dtype: str, *, largest: bool) -> int:
    if dtype == "f32":
        return 0x7F800000 if largest else 0xFF800000
    if dtype == "f64":
        return 0x7FF0000000000000 if largest else 0xFFF0000000000000
    width = vector_bytes(dtype) * 8
    if dtype == "u8":
        return 0xFF if largest else 0
    return (1 << (width - 1)) - 1 if largest else 1 << (width - 1)


def write_declarations(writer: Writer, body: Body) -> None:
    """Typed pointers to the parameters, the symbols' values and the loops' extents."""
    kernel = body.kernel
    for place, param in enumerate(kernel.params):
        element = ELEMENTS[param.dtype]
        if param.role == "out":
            writer.line(f"{element} *const out{place} = ({element} *)parameters[{place}];")
        else:
            element = f"const {element}"
            writer.line(f"{element} *const in{place} = ({element} *)parameters[{place}];")
    if any(isinstance(node, ir.Placed) for node in kernel.body):
        writer.line(f"int32_t *const outside = (int32_t *)parameters[{len(kernel.params)}];")
    for place, name in enumerate(kernel.symbols):
        writer.line(f"const int64_t {name} = dims[{place}];")
    for prefix, extents in (("p", kernel.pointwise), ("r", kernel.reduction)):
        for number, extent in enumerate(extents):
            writer.line(f"const int64_t n{prefix}{number} = {to_c(extent)};")
