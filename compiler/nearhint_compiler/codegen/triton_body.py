"""The body of a Triton kernel: IR nodes to lines, in registers or in loops over the row."""

from __future__ import annotations

from dataclasses import dataclass

from nearhint_compiler.codegen.triton_ops import combine_name, op_text
from nearhint_compiler.codegen.triton_text import (
    TRITON_TYPES,
    cast_text,
    full_text,
    index_text,
    neutral_text,
)
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex


@dataclass(frozen=True, slots=True)
class Block:
    """How a program's values are shaped and masked, per row and per element.

    An empty mask is always true. `element_header` are the lines that make the reduction variables
    and masks from `rbase` and, in a loop, `roffset`; `step` is the loop's step, empty without one.
    """

    row_shape: str
    element_shape: str
    row_mask: str
    column_mask: str = ""
    element_header: tuple[str, ...] = ()
    step: str = ""

    @property
    def element_mask(self) -> str:
        """The mask of a value that varies along both spaces."""
        return " & ".join(mask for mask in (self.row_mask, self.column_mask) if mask)

    def mask_of(self, index: ex.Expr) -> str:
        """The mask under which a load of `index` stays in its storage."""
        names = ex.symbols_of(index)
        masks = (
            self.row_mask if any(name[0] == "p" for name in names) else "",
            self.column_mask if any(name[0] == "r" for name in names) else "",
        )
        return " & ".join(mask for mask in masks if mask)


class BodyEmitter:
    """Emits one Kernel's body for one Block; `lines()` is the whole of it, not indented."""

    def __init__(self, kernel: ir.Kernel, block: Block) -> None:
        self._kernel = kernel
        self._block = block
        self._dtypes = ir.dtypes_of(kernel)
        self._varies = ir.per_element(kernel)
        self._levels = ir.levels(kernel)

    def lines(self) -> list[str]:
        """Statements in order."""
        if self._block.step:
            return self._looped()
        return [*self._block.element_header, *self._straight()]

    def _straight(self) -> list[str]:
        lines: list[str] = []
        stores: list[str] = []
        for position, node in enumerate(self._kernel.body):
            match node:
                case ir.Reduce():
                    lines.append(f"v{position} = {self._reduced(node)}")
                case ir.Store():
                    stores.append(self._line(position))
                case _:
                    lines.append(self._line(position))
        return [*lines, *stores]

    def _looped(self) -> list[str]:
        """One loop over the row for each level of reduces, and a last one for the stores.

        Stores along the row wait for the last loop, because their memory may be that of an input
        which the loops in between read again.
        """
        body, depth = self._kernel.body, max(self._levels)
        stores = [
            place
            for place, node in enumerate(body)
            if isinstance(node, ir.Store) and self._varies[place]
        ]
        lines: list[str] = []
        late: list[str] = []
        reduces_at = [
            [
                place
                for place, node in enumerate(body)
                if isinstance(node, ir.Reduce) and self._levels[place] == level + 1
            ]
            for level in range(depth + 1)
        ]
        last = max(
            [level for level, reduces in enumerate(reduces_at) if reduces]
            + [self._levels[place] for place in stores],
            default=0,
        )
        for level, reduces in enumerate(reduces_at):
            for place in self._row_nodes(level):
                is_store = isinstance(body[place], ir.Store)
                (late if is_store else lines).append(self._line(place))
            if level == last:
                lines += self._loop(reduces, stores, is_last=True)
            elif reduces:
                lines += self._loop(reduces, [], is_last=False)
        return [*lines, *late]

    def _row_nodes(self, level: int) -> list[int]:
        """Per-row nodes that need exactly `level` reduces, the finished reduces aside."""
        return [
            place
            for place, node in enumerate(self._kernel.body)
            if self._levels[place] == level
            and not self._varies[place]
            and not isinstance(node, ir.Reduce)
        ]

    def _loop(self, reduces: list[int], stores: list[int], *, is_last: bool) -> list[str]:
        body = self._kernel.body
        needed: set[int] = set()
        pending = [used for place in (*reduces, *stores) for used in ir.operands_of(body[place])]
        while pending:
            place = pending.pop()
            if self._varies[place] and place not in needed:
                needed.add(place)
                pending += ir.operands_of(body[place])
        before: list[str] = []
        after: list[str] = []
        policy = "evict_first" if is_last else "evict_last"
        inside = [
            *self._block.element_header,
            *(self._line(place, policy=policy) for place in sorted(needed)),
        ]
        for place in reduces:
            node = body[place]
            assert isinstance(node, ir.Reduce)
            combine = combine_name(node.kind, node.dtype)
            neutral, dtype = neutral_text(node.kind, node.dtype), TRITON_TYPES[node.dtype].name
            before.append(f"acc{place} = tl.full({self._block.element_shape}, {neutral}, {dtype})")
            combined = f"{combine}(acc{place}, {self._full(node)})"
            if self._block.column_mask:
                combined = f"tl.where({self._block.column_mask}, {combined}, acc{place})"
            inside.append(f"acc{place} = {combined}")
            after.append(f"v{place} = tl.reduce(acc{place}, 1, {combine})[:, None]")
        inside += [self._line(place) for place in stores]
        header = f"for roffset in range(0, rlength, {self._block.step}):"
        return [*before, header, *(f"    {line}" for line in inside), *after]

    def _full(self, node: ir.Reduce) -> str:
        """A reduce's operand with the element shape."""
        return f"tl.broadcast_to(v{node.operand}, {self._block.element_shape})"

    def _reduced(self, node: ir.Reduce) -> str:
        operand = self._full(node)
        if self._block.column_mask:
            neutral = neutral_text(node.kind, node.dtype)
            dtype = TRITON_TYPES[node.dtype].name
            rest = f"tl.full({self._block.element_shape}, {neutral}, {dtype})"
            operand = f"tl.where({self._block.column_mask}, {operand}, {rest})"
        return f"tl.reduce({operand}, 1, {combine_name(node.kind, node.dtype)})[:, None]"

    def _line(self, position: int, *, policy: str = "") -> str:
        node, name = self._kernel.body[position], f"v{position}"
        match node:
            case ir.Load(param, index):
                return f"{name} = {self._load(param, index, policy)}"
            case ir.Scalar(param):
                return f"{name} = {self._scalar(param)}"
            case ir.Const(dtype, bits):
                shape = "[1]" if self._block.row_shape == "[X]" else "[1, 1]"
                return f"{name} = {full_text(shape, dtype, bits)}"
            case ir.Iota(index):
                shape = self._shape(position)
                return f"{name} = tl.full({shape}, 0, tl.int64) + {index_text(index)}"
            case ir.Op("cast", dtype, (operand,)):
                return f"{name} = {cast_text(f'v{operand}', self._dtypes[operand], dtype)}"
            case ir.Op(op, _, operands):
                texts = [f"v{operand}" for operand in operands]
                return f"{name} = {op_text(op, self._dtypes[operands[-1]], texts)}"
            case ir.Store():
                return self._store(node, self._shape(position), self._varies[position])
            case ir.Reduce() | ir.Arg() | ir.Scan():
                raise AssertionError("reduces are emitted where their operands are complete")

    def _shape(self, position: int) -> str:
        return self._block.element_shape if self._varies[position] else self._block.row_shape

    def _scalar(self, param: int) -> str:
        dtype = self._kernel.params[param].dtype
        if dtype == "bool":
            return f"(a{param} != 0)"
        kind = TRITON_TYPES[dtype]
        return f"a{param}" if kind.scalar == dtype else f"a{param}.to({kind.name})"

    def _load(self, param: int, index: ex.Expr, policy: str) -> str:
        options = ""
        if mask := self._block.mask_of(index):
            options += f", {mask}, other=0"
        if policy and any(map(ir.is_reduction_variable, ex.symbols_of(index))):
            options += f', eviction_policy="{policy}"'
        return f"tl.load(a{param} + {index_text(index)}{options})"

    def _store(self, node: ir.Store, shape: str, varies: bool) -> str:
        where = f"tl.full({shape}, 0, tl.int32) + {index_text(node.index)}"
        if any(name[0] in "pr" for name in ex.symbols_of(node.index)):
            where = f"tl.broadcast_to({index_text(node.index)}, {shape})"
        stored = f"tl.broadcast_to(v{node.value}, {shape})"
        mask = self._block.element_mask if varies else self._block.row_mask
        return f"tl.store(a{node.param} + ({where}), {stored}{f', {mask}' if mask else ''})"
