"""Accumulators of Triton kernels: what a walk over a row carries for each reduction.

A `Total` has one or more `Part`s, blocks with one accumulator a lane. A walk starts them at their
neutral values and steps them with each block of elements; afterwards `across` brings the lanes
together, and `results` makes the reductions' values of them. Parts that several programs left in
memory are brought together in the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nearhint_compiler.analysis.arg_groups import has_arg_groups
from nearhint_compiler.analysis.online import SHIFTED_SOFTMAX, VARIANCE, Online
from nearhint_compiler.codegen.triton.ops import (
    EXACT,
    KEEPS_NAN,
    arg_name,
    at_best_name,
    combine_name,
    later_arg_name,
    shows_f32,
)
from nearhint_compiler.codegen.triton.text import TRITON_TYPES, index_text, neutral_text
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex

LAST_PLACE: Mapping[str, str] = {"i32": str(2**31 - 1), "i64": str(2**63 - 1)}
"""The place that lanes without an element have, by its dtype: of equals the least counts."""

NARROW = ("f16", "bf16")
"""Floating dtypes that are computed in f32, of fewer digits."""


@dataclass(frozen=True, slots=True)
class Part:
    """One accumulator: its variable, dtype, and the text of its neutral value."""

    name: str
    dtype: str
    neutral: str


@dataclass(frozen=True, slots=True)
class ArgGroups:
    """How the arg at `position` is looked for by groups of neighbours (`analysis.arg_groups`).

    `best(elements, axis)` makes one element of each group, which is stepped with the place of the
    group's first. When all is brought together, `within(elements, places, axis)` are the lines that
    make the place that of an element, of the elements of the best group.
    """

    position: int
    best: Callable[[str, str], str]
    within: Callable[[str, str, str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Total:
    """How one reduction, or a pair that one walk computes, is accumulated.

    `step(element, text)` is a call that gives the lanes after one more block of elements, in which
    an index reads as `text` has it. `across(axis)` brings parts of several lanes together; both
    name them as they are. `results` are the lines that
    make `v*` of parts with one lane. `operand` is the node that is reduced.

    `grouped(elements, axis)`, where there is one, is the step for elements with one axis more, all
    along which go into the same lane; beyond the row they are the pivot, or else neutral. `groups`
    is what an arg has in its place.

    Where a walk carries something else than the parts, that is `walked`, and `close` makes the
    parts of it. `fold(axis)` takes an axis away from what a walk carries. Where it starts from the
    mean of the first block of elements, or each lane from that of a group of its own, that is
    `pivot`. What `precedes` is wanted of the parts of a row before this one alone: the
    start of a scan. A step with an `idle` element changes nothing that counts. `onward` is a step
    that costs less, for blocks that come in the order of the row. `own(elements, there, axis)`,
    where there is one, are the lines that make the parts of a block in registers, of elements with
    one axis more that are a thread's own, and of which of them are there: threads start from means
    of their own, and wait for each other once. `beside(element, there)` are the lines that step
    parts with an element each where it is there, if `step` is not for parts.
    """

    operand: int
    parts: tuple[Part, ...]
    step: Callable[[str, Callable[[ex.Expr], str]], str]
    across: Callable[[str], Sequence[str]]
    results: Sequence[str]
    fold: Callable[[str], Sequence[str]] | None = None
    lanes: tuple[Part, ...] = ()
    closing: Callable[[str, str], Sequence[str]] | None = None
    pivot: Part | None = None
    precedes: bool = False
    idle: str = ""
    onward: Callable[[str, Callable[[ex.Expr], str]], str] | None = None
    grouped: Callable[[str, str], str] | None = None
    groups: ArgGroups | None = None
    own: Callable[[str, str, str], Sequence[str]] | None = None
    beside: Callable[[str, str], Sequence[str]] | None = None

    @property
    def walked(self) -> tuple[Part, ...]:
        """What a walk carries."""
        return self.lanes or self.parts

    def close(self, axis: str, elements: str) -> Sequence[str]:
        """The lines that make parts with one lane of what a walk over so many elements left."""
        return self.across(axis) if self.closing is None else self.closing(axis, elements)


def total_of(kernel: ir.Kernel, position: int, *, place_dtype: str) -> Total:
    """The total of the reduce or arg at `position`, or of what a scan there starts from; places
    along the row have `place_dtype`.
    """
    node = kernel.body[position]
    match node:
        case ir.Reduce(kind, dtype, operand):
            combine, name = combine_name(kind, dtype), f"acc{position}"
            return Total(
                operand,
                (Part(name, dtype, neutral_text(kind, dtype)),),
                lambda element, _: f"{combine}({name}, {element})",
                lambda axis: [f"{name} = tl.reduce({name}, {axis}, {combine}, keep_dims=True)"],
                (f"v{position} = {name}",),
                idle=neutral_text(kind, dtype),
                fold=lambda axis: [f"{name} = tl.reduce({name}, {axis}, {combine})"],
                grouped=lambda elements, axis: (
                    f"{combine}({name}, tl.reduce({elements}, {axis}, {combine}))"
                ),
            )
        case ir.Arg(kind, dtype, operand, index):
            combine, value, place = arg_name(kind, dtype), f"acc{position}", f"at{position}"
            both, last = f"{value}, {place}", LAST_PLACE[place_dtype]
            later = later_arg_name(kind, dtype)
            is_in_order = index == ex.symbol("r0") and len(kernel.reduction) == 1
            largest, at_best = combine_name(kind, dtype), at_best_name(dtype)
            return Total(
                operand,
                (
                    Part(value, dtype, neutral_text(kind, dtype)),
                    # That of the first element, which it is where none is better than the worst.
                    Part(place, place_dtype, "0" if is_in_order else last),
                ),
                lambda element, text: f"{combine}({both}, {element}, {text(index)})",
                # The best first and then where it is: comparing pairs takes three times as long.
                lambda axis: [
                    f"best{position} = tl.reduce({value}, {axis}, {largest}, keep_dims=True)",
                    f"{place} = {at_best}({value}, best{position}, {place}, {last})",
                    f"{place} = tl.reduce({place}, {axis}, _combine_min, keep_dims=True)",
                    f"{value} = best{position}",
                ],
                (f"v{position} = {place}.to(tl.int64)",),
                # Its place counts only where all elements are as low, and the first one's is less.
                idle=neutral_text(kind, dtype),
                onward=(lambda element, text: f"{later}({both}, {element}, {text(index)})")
                if is_in_order
                else None,
                fold=lambda axis: [
                    f"best{position} = tl.reduce({value}, {axis}, {largest})",
                    f"top{position} = tl.expand_dims(best{position}, {axis})",
                    f"{place} = {at_best}({value}, top{position}, {place}, {last})",
                    f"{place} = tl.reduce({place}, {axis}, _combine_min)",
                    f"{value} = best{position}",
                ],
                groups=ArgGroups(
                    position,
                    lambda elements, axis: f"tl.reduce({elements}, {axis}, {largest})",
                    lambda elements, places, axis: [
                        f"{place} = {at_best}({elements}, {value}, {places}, {last})",
                        f"{place} = tl.reduce({place}, {axis}, _combine_min, keep_dims=True)",
                    ],
                )
                if has_arg_groups(kernel, position)
                else None,
            )
        case ir.Scan(kind, dtype, operand):
            combine, name = combine_name(kind, dtype), f"carry{position}"
            return Total(
                operand,
                (Part(name, dtype, neutral_text(kind, dtype)),),
                lambda element, _: f"{combine}({name}, {element})",
                lambda axis: [f"{name} = tl.reduce({name}, {axis}, {combine}, keep_dims=True)"],
                (),
                fold=lambda axis: [f"{name} = tl.reduce({name}, {axis}, {combine})"],
                precedes=True,
                idle=neutral_text(kind, dtype),
            )
        case _:
            raise AssertionError(node)


def online_total(kernel: ir.Kernel, pair: Online) -> Total:
    """The total of a pair of reduces."""
    return (_variance if pair.kind == VARIANCE else _softmax)(kernel, pair)


def _softmax(kernel: ir.Kernel, pair: Online) -> Total:
    dtype = _dtype(kernel, pair)
    largest, total = f"acc{pair.first}", f"acc{pair.second}"
    infinite = 'float("nan")'
    exact = EXACT if dtype == "f32" and shows_f32(kernel) else ""
    step, group, below = (
        f"{helper}{exact}" for helper in ("_online_softmax", "_online_softmax_group", "_exp_below")
    )
    if pair.kind == SHIFTED_SOFTMAX:
        infinite = f'tl.where(v{pair.first} > 0, float("inf"), 0.0)'
    return Total(
        pair.operand,
        (Part(largest, dtype, neutral_text("max", dtype)), Part(total, dtype, "0.0")),
        lambda element, _: f"{step}({largest}, {total}, {element})",
        lambda axis: [
            f"best{pair.first} = tl.reduce({largest}, {axis}, _combine_max_nan, keep_dims=True)",
            f"{total} = {total} * {below}({largest}, best{pair.first})",
            f"{total} = tl.reduce({total}, {axis}, _combine_sum, keep_dims=True)",
            f"{largest} = best{pair.first}",
        ],
        (
            f"v{pair.first} = {largest}",
            f'v{pair.second} = tl.where(tl.abs({largest}) == float("inf"), {infinite}, {total})',
        ),
        fold=lambda axis: [
            f"best{pair.first} = tl.reduce({largest}, {axis}, _combine_max_nan)",
            f"{total} = {total} * {below}({largest}, tl.expand_dims(best{pair.first}, {axis}))",
            f"{total} = tl.reduce({total}, {axis}, _combine_sum)",
            f"{largest} = best{pair.first}",
        ],
        grouped=lambda elements, _: f"{group}({largest}, {total}, {elements})",
    )


def _variance(kernel: ir.Kernel, pair: Online) -> Total:
    """Sums of differences from a pivot, the mean of the row's first block; no division a step.

    The pivot is so near to the mean that what the subtraction at the end loses is little: of n
    elements in blocks of R, at most n / R roundings of the sum of squares. It has no more digits
    than narrow elements have, so that the differences of these are exact. Where f32 is written,
    lanes and parts are brought together in f64: they are few, and each rounding there would be in
    all of a row's elements. Threads that start from means of their own bring these together as they
    are, without a pivot, once: in f64 all that was gained would be lost.
    """
    dtype = _dtype(kernel, pair)
    kinds = ("total", "mean", "square", "count")
    total, mean, square, count = (f"{kind}{pair.first}" for kind in kinds)
    shifted, pivot = f"shifted{pair.first}", f"pivot{pair.first}"
    lanes = f"{shifted}, {square}"
    is_exact = dtype == "f32" and shows_f32(kernel)
    narrow = TRITON_TYPES[dtype].name

    def widened(*names: str) -> list[str]:
        return [f"{each} = _wide({each})" for each in names if is_exact]

    def narrowed(*names: str) -> list[str]:
        return [f"{each} = {each}.to({narrow})" for each in names if is_exact]

    def close(axis: str, elements: str) -> list[str]:
        part = f"part{pair.first}"
        return [
            *widened(shifted, square),
            f"{lanes} = tl.reduce(({lanes}), {axis}, _two_sums, keep_dims=True)",
            f"{count} = tl.zeros_like({pivot}) + tl.maximum({elements}, 0).to({narrow})",
            f"{part} = {shifted}{f'.to({narrow})' * is_exact} / tl.maximum({count}, 1.0)",
            f"{total} = {shifted} + {pivot} * {count}",
            f"{mean} = {pivot} + {part}",
            f"{square} = tl.maximum({square} - {shifted} * {part}, 0.0, {KEEPS_NAN})",
            # One element may differ from itself: a product that is not rounded is subtracted.
            f"{square} = tl.where({count} > 1.0, {square}, {square} * 0.0)",
            *narrowed(total, square),
        ]

    def own(elements: str, there: str, axis: str) -> list[str]:
        parts = f"{mean}, {square}, {count}"
        return [
            f"{parts} = _of_thread({elements}, {there})",
            f"{parts} = tl.reduce(({parts}), {axis}, _met, keep_dims=True)",
            f"{total} = {mean} * {count}",
        ]

    def beside(element: str, there: str) -> list[str]:
        parts = f"{mean}, {square}, {count}"
        # Of an element that is not there nothing comes, however far the mean is from 0.
        met = f"tl.where({there}, {element}, {mean}), 0.0, {there}.to({narrow})"
        return [
            *widened(total),
            f"{total} = {total} + tl.where({there}, {element}, 0.0)",
            f"{parts} = _met({parts}, {met})",
        ]

    def across(axis: str) -> list[str]:
        whole, many, away = (f"{name}{pair.first}" for name in ("whole", "many", "away"))
        return [
            *widened(total, square),
            f"{whole}, {many} = tl.reduce(({total}, {count}), {axis}, _two_sums, keep_dims=True)",
            f"{total} = {whole}{f'.to({narrow})' * is_exact}",
            f"{away} = {mean} - {total} / tl.maximum({many}, 1.0)",
            f"{square} = {square} + {away} * {away} * {count}",
            f"{square} = tl.reduce({square}, {axis}, _combine_sum, keep_dims=True)",
            f"{count} = {many}",
            f"{mean} = {total} / tl.maximum({count}, 1.0)",
            *narrowed(square),
        ]

    return Total(
        pair.operand,
        tuple(Part(name, dtype, "0.0") for name in (total, mean, square, count)),
        lambda element, _: f"_shifted_step({lanes}, {pivot}, {element})",
        across,
        # A mean cannot leave an infinity again; a sum with one may still be an infinity.
        (f"v{pair.first} = {total}", f"v{pair.second} = {square}"),
        lanes=tuple(Part(name, dtype, "0.0") for name in (shifted, square)),
        closing=close,
        fold=lambda axis: [f"{lanes} = tl.reduce(({lanes}), {axis}, _two_sums)"],
        pivot=Part(pivot, dtype, "0.0"),
        grouped=lambda elements, _: f"_shifted_group({lanes}, {pivot}, {elements})",
        own=own,
        beside=beside,
    )


def narrow_dtype(kernel: ir.Kernel, position: int) -> str:
    """The floating dtype of two bytes that the elements at `position` are cast from; "" if none."""
    node = kernel.body[position]
    if not isinstance(node, ir.Op) or node.name != "cast":
        return ""
    dtype = ir.dtypes_of(kernel)[node.operands[0]]
    return dtype if dtype in NARROW else ""


def variance_of_lanes(kernel: ir.Kernel, pair: Online) -> Total:
    """Sums of differences from a pivot that each lane has of its own, the mean of its first group.

    So nothing is waited for before the walk, and no element is far from its pivot that is not far
    from its lane's others: whatever the row's mean, each lane's sums are as exact as they are long.
    Lanes, and parts, are sums of elements and of squares in f64, and added; what the subtraction
    at the end loses there is less than the mean's rounding in f32, of any f32 elements.
    """
    dtype = _dtype(kernel, pair)
    kinds = ("total", "square", "shifted", "count", "pivot")
    total, square, shifted, count, pivot = (f"{kind}{pair.first}" for kind in kinds)
    lanes, narrow = (shifted, square, count), TRITON_TYPES[dtype].name
    both, length = f"{total}, {square}", index_text(ex.product(kernel.reduction))

    def across(axis: str) -> list[str]:
        return [f"{both} = tl.reduce(({both}), {axis}, _two_sums, keep_dims=True)"]

    def close(axis: str, elements: str) -> list[str]:
        widened = [f"{each} = _wide({each})" for each in (*lanes, pivot)]
        return [
            *widened,
            f"{total} = {shifted} + {pivot} * {count}",
            f"{square} = {square} + {pivot} * ({total} + {shifted})",
            *across(axis),
        ]

    def beside(element: str, there: str) -> list[str]:
        more = f"more{pair.first}"
        return [
            f"{more} = _wide(tl.where({there}, {element}, 0.0))",
            f"{total} = {total} + {more}",
            f"{square} = {square} + {more} * {more}",
        ]

    def stepped(elements: str, _: object) -> str:
        return f"_own_group({', '.join(lanes)}, {pivot}, {elements})"

    away = f"{square} - {total} * ({total} / (tl.zeros_like({total}) + {length}))"
    return Total(
        pair.operand,
        (Part(total, "f64", "0.0"), Part(square, "f64", "0.0")),
        stepped,
        across,
        (
            f"v{pair.first} = {total}.to({narrow})",
            f"v{pair.second} = tl.maximum({away}, 0.0, {KEEPS_NAN}).to({narrow})",
        ),
        lanes=tuple(Part(name, dtype, "0.0") for name in lanes),
        closing=close,
        pivot=Part(pivot, dtype, "0.0"),
        grouped=stepped,
        beside=beside,
    )


def _dtype(kernel: ir.Kernel, pair: Online) -> str:
    node = kernel.body[pair.second]
    assert isinstance(node, ir.Reduce)
    return node.dtype
