"""Body nodes in Triton: one line for each value, the same in registers and in a walk."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from nearhint_compiler.analysis.branches import (
    Branch,
    Choice,
    branches,
    guarded,
    joined,
)
from nearhint_compiler.analysis.flat import FLAT, in_order
from nearhint_compiler.analysis.jumps import before_jumps, quotients_before_jumps
from nearhint_compiler.analysis.members import Members
from nearhint_compiler.analysis.runs import run_of
from nearhint_compiler.analysis.shares import shares_of_sums
from nearhint_compiler.codegen.triton.beyond import ZEROS, loaded, neutrals
from nearhint_compiler.codegen.triton.block import Block
from nearhint_compiler.codegen.triton.members import member_lines
from nearhint_compiler.codegen.triton.ops import combine_name, op_text, shows_f32
from nearhint_compiler.codegen.triton.phases import phased
from nearhint_compiler.codegen.triton.text import (
    TRITON_TYPES,
    cast_text,
    exact_reciprocal,
    full_text,
    index_text,
    neutral_text,
    zero_text,
)
from nearhint_compiler.codegen.triton.together import read_together
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.schedule.block_pointers import is_pointed
from nearhint_rules import expr as ex

ATOMIC = {"sum": "add", "max": "max", "min": "min"}
"""Triton's names of what a scatter does."""
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
"""What is asked of places along a loop in the width of indices, not in the 64 bits of a value."""
F8E4M3_LARGEST, F8E4M3_LIMIT = 448.0, 464.0
"""The largest f8e4m3fn, and the magnitude beyond which the nearest one is not finite."""


@dataclass(frozen=True, slots=True)
class Clamp:
    """A node that is clamped, by the greatest of lower bounds and the least of upper ones."""

    operand: int
    least: float
    most: float


class Body:
    """A kernel's nodes as lines, for one `Block`; node n is the variable `v{n}`.

    What varies along the reduction has the block's prefix in place of v.
    """

    def __init__(self, kernel: ir.Kernel, block: Block) -> None:
        self.kernel = kernel
        self.block = block
        self.varies = ir.per_element(kernel)
        self._dtypes = ir.dtypes_of(kernel)
        self._branches = branches(kernel)
        self._beyond = neutrals(kernel)
        self._guarded = guarded(kernel)
        self._joined = joined(kernel)
        self._members = {
            place: group
            for group in block.members
            for place in group.places
            if place is not None and not {*self._branches, *self._joined} & {*group.places}
        }
        self._placed = _placed(kernel)
        self._terms = _terms_of_sums(kernel)
        self._shares = shares_of_sums(kernel) if block.is_reused else {}
        self._rows = {f"p{number}" for number in range(len(kernel.pointwise))}
        self._is_exact = shows_f32(kernel)
        self._before_jumps = before_jumps(kernel)
        self._rounded = quotients_before_jumps(kernel)
        self._values = {
            operand
            for place, node in enumerate(kernel.body)
            if place not in self._placed
            for operand in ir.operands_of(node)
        }

    @property
    def element_stores(self) -> list[int]:
        """Stores that run along the reduction."""
        return [p for p in self._stores() if self.varies[p]]

    @property
    def row_stores(self) -> list[int]:
        """Stores that run once a row."""
        return [p for p in self._stores() if not self.varies[p]]

    def _stores(self) -> list[int]:
        return [p for p, node in enumerate(self.kernel.body) if isinstance(node, ir.Store)]

    def needed(self, roots: Iterable[int]) -> list[int]:
        """What varies along the reduction among `roots` and what they are computed from."""
        found: set[int] = set()
        pending = list(roots)
        while pending:
            place = pending.pop()
            if self.varies[place] and place not in found:
                found.add(place)
                pending += self.named(place)
        return sorted(found)

    def named(self, position: int) -> list[int]:
        """The nodes that a node's lines name: of a load also those that say whether it is wanted,
        and the one that is read for several.
        """
        found = [*ir.operands_of(self.kernel.body[position])]
        if several := self._joined.get(position):
            found += [min(several.places), *several.conditions, *several.true, *several.false]
        elif branch := self._branches.get(position):
            found += [*branch.true, *branch.false]
        return found

    def name(self, position: int) -> str:
        """The variable of a node."""
        return f"{self.block.prefix if self.varies[position] else 'v'}{position}"

    def full(self, position: int) -> str:
        """A node's value with the shape of the elements."""
        return f"tl.broadcast_to({self.name(position)}, {self.block.element_shape})"

    def masked(self, value: str, neutral: str, dtype: str) -> str:
        """`value` where there are elements, the neutral value beyond the row."""
        if not self.block.column_mask:
            return value
        rest = f"tl.full({self.block.element_shape}, {neutral}, {TRITON_TYPES[dtype].name})"
        return f"tl.where({self.block.column_mask}, {value}, {rest})"

    def operand(self, position: int, neutral: str, dtype: str) -> str:
        """A node's value where there are elements, the neutral value beyond the row."""
        value = self.full(position)
        is_neutral = self.is_neutral_beyond(position, neutral)
        return value if is_neutral else self.masked(value, neutral, dtype)

    def stepped(self, total: str, node: ir.Reduce) -> str:
        """The accumulator `total` once it has the operand of a reduce, where there are elements."""
        neutral = neutral_text(node.kind, node.dtype)
        onward = f"{combine_name(node.kind, node.dtype)}({total}, {self.full(node.operand)})"
        if not self.block.column_mask or self.is_neutral_beyond(node.operand, neutral):
            return onward
        return f"tl.where({self.block.column_mask}, {onward}, {total})"

    def is_neutral_beyond(self, position: int, neutral: str) -> bool:
        """Whether a node's lanes beyond the row, if there are any, are `neutral` as they are."""
        if not self.block.column_mask:
            return True
        node = self.kernel.body[position]
        if isinstance(node, ir.Op) and node.name == "mul" and len({*node.operands}) == 1:
            return neutral in ZEROS and self.is_neutral_beyond(node.operands[0], neutral)
        if self._is_term_of_most(position):
            # exp(-inf - m) is 0, unless m is -inf: then elements are NaN as well.
            return neutral in ZEROS
        load = loaded(self.kernel, position)
        if load is None or load in self._branches or self.block.spans or not self.varies[load]:
            return False
        beyond = self._beyond.get(load)
        return neutral in ZEROS if beyond is None else neutral == beyond

    def _is_term_of_most(self, position: int) -> bool:
        """Whether a node is exp(x - m), m being the most along the row, beyond which x is -inf."""
        value = below_most(self.kernel, position)
        return value is not None and self.is_neutral_beyond(
            value, neutral_text("max", self._dtypes[value])
        )

    def lines(self, position: int, *, policy: str = "") -> Sequence[str]:
        """The statements of a node that is no reduce and no arg; `policy` is for its access."""
        node, name = self.kernel.body[position], self.name(position)
        match node:
            case ir.Load() if position in self._joined and self._is_whole(*self._ways(position)):
                return self._wanted_of(position)
            case ir.Load(param, index) if position in self._branches and self._is_whole(index):
                branch = self._branches[position]
                where = self._in_order(branch.index)
                return [f"{name} = {self._load(param, where, policy, branch=branch)}"]
            case ir.Load() if group := self._members.get(position):
                return self._member_lines(group) if position == group.first else []
            case ir.Load(param, index):
                together = self.block.together
                is_plain = position not in self._branches and position not in self._joined
                if together and is_plain and run_of(self.kernel, index):
                    return read_together(self.kernel, self.block, together, position, name)
                beyond = self._beyond.get(position, "")
                return [f"{name} = {self._load(param, index, policy, beyond=beyond)}"]
            case ir.Gather():
                return [f"{name} = {self._gathered(node, policy)}"]
            case ir.Scatter():
                return self._scattered(node, position)
            case ir.Former():
                raise AssertionError("what a scatter begins with is a stage of its own")
            case ir.Scalar(param):
                return [f"{name} = {self._scalar(param)}"]
            case ir.Const(dtype, bits):
                return [f"{name} = {full_text(self.block.unit_shape, dtype, bits)}"]
            case ir.Iota() if position not in self._values:
                return []
            case ir.Iota(index):
                shape = self._shape(position)
                return [f"{name} = tl.full({shape}, 0, tl.int64) + {self.block.text(index)}"]
            case ir.Op("cast", "f8e4m3fn", (operand,)) if clamp := self._clamp(operand):
                # The hardware's cast saturates as such a clamp does, and keeps a NaN.
                is_idle = -clamp.least >= F8E4M3_LARGEST <= clamp.most
                value = self.name(clamp.operand if is_idle else operand)
                return [f"{name} = {value}.to({TRITON_TYPES['f8e4m3fn'].name})"]
            case ir.Op("cast", dtype, (operand,)):
                value = cast_text(self.name(operand), self._dtypes[operand], dtype)
                return [f"{name} = {value}"]
            case ir.Op("div", _, (top, bottom)) if factor := exact_reciprocal(
                self.kernel.body[bottom]
            ):
                return [f"{name} = {self.name(top)} * {factor}"]
            case ir.Op() if position in self._shares:
                share = self._shares[position]
                return [f"{name} = {self.name(share.term)} * (1.0 / {self.name(share.total)})"]
            case ir.Op(op, _, operands) if position in self._placed:
                places = (ir.place_of(self.kernel.body[operand]) for operand in operands)
                texts = [self.block.text(place) for place in places if place is not None]
                return [f"{name} = {op_text(op, 'i64', texts)}"]
            case ir.Op(op, _, operands):
                texts = [self.name(operand) for operand in operands]
                dtype = self._dtypes[operands[-1]]
                is_jumped_from = position in self._before_jumps
                is_quotient = op == "div" and dtype == "f32" and not is_jumped_from
                if is_quotient and position in self._rounded:
                    top, bottom = (self.varies[operand] for operand in operands)
                    divide = "_row_quotient" if top and not bottom else "tl.div_rn"
                    return [f"{name} = {divide}({texts[0]}, {texts[1]})"]
                if is_quotient and self._is_scaled(*operands):
                    return [f"{name} = {texts[0]} * (1.0 / {texts[1]})"]
                if is_quotient and self._is_of_row(*operands) and self._is_one_or_more(operands[1]):
                    return [f"{name} = _row_share({texts[0]}, {texts[1]})"]
                is_once = bool(self.kernel.reduction) and not self.varies[position]
                text = op_text(
                    op,
                    dtype,
                    texts,
                    is_exact=self._is_exact or is_jumped_from,
                    is_once=is_once or is_jumped_from,
                    is_term=position in self._terms,
                    is_below_most=below_most(self.kernel, position) is not None,
                )
                return [f"{name} = {text}"]
            case ir.Scan():
                return self._scan(position, node)
            case ir.Store():
                return [self._store(node, position, policy)]
            case ir.Reduce() | ir.Arg():
                raise AssertionError("reduces are emitted where their operands are complete")

    def is_independent(self, position: int) -> bool:
        """Whether a node is a load that needs no other node."""
        is_load = isinstance(self.kernel.body[position], ir.Load)
        return is_load and position not in self._branches and position not in self._joined

    def is_shared(self, position: int) -> bool:
        """Whether a node is a load that is the same for all rows."""
        node = self.kernel.body[position]
        return isinstance(node, ir.Load) and not self._rows & {*ex.symbols_of(node.index)}

    @property
    def early(self) -> list[int]:
        """The loads that come before all else: in turns those that rows share, in order."""
        block, found = self.block, list[int]()
        for place, node in enumerate(self.kernel.body):
            is_load = (
                isinstance(node, ir.Load) and self.varies[place] and self.is_independent(place)
            )
            if is_load and (block.is_early or (block.turn and self.is_shared(place))):
                found.append(place)
        return found

    def carries(self, positions: Iterable[int]) -> list[str]:
        """The lines before a walk that start the scans among `positions`."""
        found: list[str] = []
        for position in positions:
            node = self.kernel.body[position]
            if isinstance(node, ir.Scan):
                neutral, dtype = neutral_text(node.kind, node.dtype), TRITON_TYPES[node.dtype].name
                found.append(
                    f"carry{position} = tl.full({self.block.row_shape}, {neutral}, {dtype})"
                )
        return found

    def _clamp(self, place: int) -> Clamp | None:
        """The clamp, in f32 and by constants that f8e4m3fn holds, that a node is the last of."""
        node, least, most = self.kernel.body[place], -math.inf, math.inf
        while isinstance(node, ir.Op) and node.name in ("min", "max") and node.dtype == "f32":
            nodes = [self.kernel.body[operand] for operand in node.operands]
            constants = [each for each in nodes if isinstance(each, ir.Const)]
            if not constants or not abs(bound := _single(constants[0])) <= F8E4M3_LIMIT:
                return None
            if node.name == "min":
                most = min(most, bound)
            else:
                least = max(least, bound)
            place = node.operands[0 if nodes[1] is constants[0] else 1]
            node = self.kernel.body[place]
        return Clamp(place, least, most) if math.inf not in (-least, most) else None

    def _member_lines(self, group: Members) -> list[str]:
        names = {at: self.name(p) for at, p in enumerate(group.places) if p is not None}
        zero = zero_text(self.kernel.params[group.param].dtype)
        return member_lines(self.block, group, names, zero)

    def _ways(self, position: int) -> list[ex.Expr]:
        """The indices of the loads of which the one at `position` is one."""
        return [self._guarded[place].index for place in self._joined[position].places]

    def _wanted_of(self, position: int) -> list[str]:
        """The lines that load the wanted one of several at once, at the first of them."""
        name, several = self.name(position), self._joined[position]
        first = min(several.places)
        if position != first:
            return [f"{name} = {self.name(first)}"]
        params = {self._param(place) for place in several.places}
        has_base = len(params) == 1 and not any(map(self.block.has_rows, self._ways(position)))
        base = f"a{params.pop()} + " if has_base else ""
        where = f"{base}{self._wanted(several.wanted, has_base=bool(base))}"
        masks = (
            self.block.mask_of(*self._ways(position)),
            self._conditions(several.true, several.false),
        )
        masked = " & ".join(filter(None, masks))
        zero = zero_text(self.kernel.params[self._param(position)].dtype)
        options = f", {masked}, other={zero}" if masked else ""
        return [
            *(line for each in several.conditions if each > first for line in self.lines(each)),
            f"{name} = tl.load({where}{options})",
        ]

    def _wanted(self, wanted: Choice | int, *, has_base: bool) -> str:
        """Where the wanted one of several loads is: from a pointer on, or as a pointer."""
        if isinstance(wanted, int):
            index = self._in_order(self._guarded[wanted].index)
            if has_base:
                return self.block.text(index)
            return self.block.at(f"a{self._param(wanted)}", index)
        true, false = (
            self._wanted(each, has_base=has_base) for each in (wanted.true, wanted.false)
        )
        return f"tl.where({self.name(wanted.condition)}, {true}, {false})"

    def _conditions(self, true: Iterable[int], false: Iterable[int]) -> str:
        """The mask where these nodes are true and those are false."""
        masks = [self.name(place) for place in true]
        return " & ".join([*masks, *(f"({self.name(place)} == 0)" for place in false)])

    def _param(self, position: int) -> int:
        node = self.kernel.body[position]
        assert isinstance(node, ir.Load)
        return node.param

    def _in_order(self, index: ex.Expr) -> ex.Expr:
        is_flat = FLAT in self.block.axis_of
        return (in_order(self.kernel, index) if is_flat else None) or index

    def _scan(self, position: int, node: ir.Scan) -> Sequence[str]:
        combine, axis = combine_name(node.kind, node.dtype), self.block.reduced_axis
        name = f"v{position}"
        neutral = neutral_text(node.kind, node.dtype)
        lines = [
            f"{name} = {self.masked(self.full(node.operand), neutral, node.dtype)}",
            f"last{position} = tl.reduce({name}, {axis}, {combine}, keep_dims=True)",
            f"{name} = tl.associative_scan({name}, {axis}, {combine})",
        ]
        if not self.block.end:
            return [lines[0], lines[2]]
        return [
            *lines,
            f"{name} = {combine}(carry{position}, {name})",
            f"carry{position} = {combine}(carry{position}, last{position})",
        ]

    def _is_scaled(self, number: int, divisor: int) -> bool:
        """Whether a quotient may be the product with what is there once a row."""
        is_near = self.block.is_anew or self._is_one_or_more(divisor)
        return is_near and self._is_of_row(number, divisor) and not self._is_exact

    def _is_of_row(self, number: int, divisor: int) -> bool:
        return self.varies[number] and not self.varies[divisor]

    def _is_one_or_more(self, position: int) -> bool:
        """Whether a node is a sum along the row of exponentials of which one is 1."""
        match self.kernel.body[position]:
            case ir.Reduce("sum", _, operand):
                return below_most(self.kernel, operand) is not None
            case _:
                return False

    def _shape(self, position: int) -> str:
        return self.block.element_shape if self.varies[position] else self.block.row_shape

    def _scalar(self, param: int) -> str:
        dtype = self.kernel.params[param].dtype
        if dtype == "bool":
            return f"(a{param} != 0)"
        kind = TRITON_TYPES[dtype]
        return f"a{param}" if kind.scalar == dtype else f"a{param}.to({kind.name})"

    def _is_whole(self, *indices: ex.Expr) -> bool:
        """Whether indices vary along every axis, so that any mask is of their shape."""
        axis_of = self.block.axis_of
        return {axis_of[n] for n in ex.symbols_of(*indices) if n in axis_of} == {*self.block.axes}

    def _load(
        self,
        param: int,
        index: ex.Expr,
        policy: str,
        *,
        branch: Branch | None = None,
        beyond: str = "",
    ) -> str:
        if branch is None and (found := phased(self.kernel, self.block, param, index, beyond)):
            return found
        pointer = "" if branch is not None else self._pointer(param, index)
        options = ""
        masks = [mask] if not pointer and (mask := self.block.mask_of(index)) else []
        if branch is None and (found := self.block.once(param, index)):
            return found
        if branch is not None:
            masks.append(self._conditions(branch.true, branch.false))
        if pointer and self.block.bounds_checked:
            options += f'{self.block.bounds_checked}, padding_option="zero"'
        elif masks:
            other = beyond or zero_text(self.kernel.params[param].dtype)
            options += f", {' & '.join(masks)}, other={other}"
        names = ex.symbols_of(index)
        if self.block.is_streamed and self._rows <= {*names}:
            policy = "evict_first"
        if self._is_read_again(index):
            policy = "evict_last"
        elif not any(map(ir.is_reduction_variable, names)):
            policy = ""
        if policy:
            options += f', eviction_policy="{policy}"'
        return f"tl.load({pointer or self.block.at(f'a{param}', index)}{options})"

    def _is_read_again(self, index: ex.Expr) -> bool:
        """Whether what is read along its loops is so again, once an outer loop has gone on.

        Such as the bias of heads for each batch, or rotations for each head: what is read and
        written between must not take its place in a cache.
        """
        names = ex.symbols_of(index)
        if FLAT in names:
            return FLAT in ex.symbols_of(ex.sub(index, ex.symbol(FLAT)))
        along = [f"p{number}" in names for number in range(len(self.kernel.pointwise))]
        return True in along and not all(along[: len(along) - along[::-1].index(True)])

    def _gathered(self, node: ir.Gather, policy: str) -> str:
        """A load from the row that a value names: a pointer a row, and an offset an element."""
        last = index_text(ex.sub(node.size, 1))
        place = f"tl.minimum(tl.maximum({self.name(node.place)}, 0), {last})"
        row = f"a{node.param} + {place} * {index_text(node.stride)}"
        mask = self.block.mask_of(node.index)
        options = f", {mask}, other={zero_text(self.kernel.params[node.param].dtype)}" * bool(mask)
        if policy and any(map(ir.is_reduction_variable, ex.symbols_of(node.index))):
            options += f', eviction_policy="{policy}"'
        return f"tl.load({row} + {self.block.text(node.index)}{options})"

    def _scattered(self, node: ir.Scatter, position: int) -> Sequence[str]:
        """What adds each point where its place says, atomically, if there is such a place."""
        shape, at = self._shape(position), f"at{position}"
        mask = self.block.element_mask if self.varies[position] else self.block.row_mask
        there = f"({at} >= 0) & ({at} < {index_text(node.size)})"
        target = f"a{node.param}"
        if self.kernel.params[node.param].dtype != node.dtype:
            target = "w0"
        where = f"{target} + ({at} * {index_text(node.stride)} + {self.block.text(node.index)})"
        value = f"tl.broadcast_to({self.name(node.value)}, {shape})"
        masked = " & ".join(filter(None, (there, mask and f"({mask})")))
        return [
            f"{at} = tl.broadcast_to({self.name(node.place)}, {shape})",
            f'tl.atomic_{ATOMIC[node.kind]}({where}, {value}, {masked}, sem="relaxed")',
        ]

    def _store(self, node: ir.Store, position: int, policy: str) -> str:
        shape, varies = self._shape(position), self.varies[position]
        stored = f"tl.broadcast_to({self.name(node.value)}, {shape})"
        evicted = f', eviction_policy="{policy}"' if policy else ""
        if pointer := self._pointer(node.param, node.index):
            return f"tl.store({pointer}, {stored}{self.block.bounds_checked}{evicted})"
        where = f"tl.full({shape}, 0, tl.int32) + {self.block.text(node.index)}"
        if any(name in self.block.axis_of for name in ex.symbols_of(node.index)):
            where = f"tl.broadcast_to({self.block.text(node.index)}, {shape})"
        mask = self.block.element_mask if varies else self.block.row_mask
        options = f", {mask}" if mask else ""
        return f"tl.store(a{node.param} + ({where}), {stored}{options}{evicted})"

    def _pointer(self, param: int, index: ex.Expr) -> str:
        """A pointer to the whole block, where the layout wants one and the access can have one."""
        has_type = is_pointed(self.kernel, param)
        return self.block.pointer(f"a{param}", index) if has_type else ""


def _terms_of_sums(kernel: ir.Kernel) -> frozenset[int]:
    """What varies along the row and goes into sums alone, by whatever operations."""
    varies, others = ir.per_element(kernel), set[int]()
    for place, node in reversed([*enumerate(kernel.body)]):
        is_sum = isinstance(node, ir.Reduce) and node.kind == "sum"
        if not is_sum and (place in others or not isinstance(node, ir.Op) or not varies[place]):
            others.update(ir.operands_of(node))
    return frozenset(p for p, each in enumerate(varies) if each) - others


def below_most(kernel: ir.Kernel, position: int) -> int | None:
    """The node x of which a node is exp(x - m), m being the most of x along the row; else none."""
    match kernel.body[position]:
        case ir.Op("exp", _, (below,)):
            difference = kernel.body[below]
        case _:
            return None
    match difference:
        case ir.Op("sub", dtype, (value, most)):
            return value if kernel.body[most] == ir.Reduce("max", dtype, value) else None
        case _:
            return None


def _placed(kernel: ir.Kernel) -> frozenset[int]:
    """Comparisons of places along loops."""

    def is_placed(node: ir.BodyNode) -> bool:
        if not isinstance(node, ir.Op) or node.name not in COMPARISONS:
            return False
        found = [ir.place_of(kernel.body[operand]) for operand in node.operands]
        places = [place for place in found if place is not None]
        loops = {name for name in ex.symbols_of(*places) if name[0] != "k"}
        return len(places) == len(found) and bool(loops)

    return frozenset(p for p, node in enumerate(kernel.body) if is_placed(node))


def _single(constant: ir.Const) -> float:
    (value,) = struct.unpack("<f", constant.bits.to_bytes(4, "little"))
    return float(value)
