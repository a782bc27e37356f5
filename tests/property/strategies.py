"""What property tests draw: expressions, Programs, Plans, Targets and Tables, all of them legal."""

from __future__ import annotations

import math
from functools import cache

from hypothesis import strategies as st

from nearhint_rules import expr as ex
from nearhint_rules.artifact import (
    Argument,
    ArtifactRef,
    CpuLaunch,
    CudaLaunch,
    NullArgument,
    PointerArgument,
    ScalarArgument,
    SizeArgument,
    StageArgument,
    WorkspaceArgument,
)
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.expr import Expr
from nearhint_rules.guard import Aligned, AtMost, Divisible, Equals, Fact, Guard
from nearhint_rules.plan import Fallback, Free, Launch, MakeView, Output, Plan, RunNodes, Step
from nearhint_rules.program import (
    DTYPES,
    OTHER_DTYPE,
    Arg,
    DType,
    FloatType,
    IntType,
    Keyword,
    Node,
    OtherType,
    Program,
    Ref,
    Symbol,
    TensorType,
    ValueType,
)
from nearhint_rules.table import HintRow, Pin, Table, Timing, Variant
from nearhint_rules.target import CpuDevice, CudaDevice, Device, Target

NAMES = ("s0", "s1", "s2", "s10", "batch")


@cache
def trees(names: tuple[str, ...] = NAMES, *, leaves: int = 8) -> st.SearchStrategy[Expr]:
    """Expression trees in any form, canonical or not; a divisor may be zero."""
    leaf: st.SearchStrategy[Expr] = st.integers(-6, 6).map(ex.Int)
    if names:
        leaf = leaf | st.sampled_from(names).map(ex.Sym)

    def grow(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        several = st.lists(inner, min_size=2, max_size=3).map(tuple)
        return st.one_of(
            several.map(ex.Add),
            several.map(ex.Mul),
            several.map(ex.Min),
            several.map(ex.Max),
            st.builds(ex.Pow, inner, st.integers(2, 3)),
            st.builds(ex.FloorDiv, inner, inner),
            st.builds(ex.Mod, inner, inner),
        )

    return st.recursive(leaf, grow, max_leaves=leaves)


def value_of(tree: Expr, sizes: dict[str, int]) -> int | None:
    """The value of a tree by Python's own arithmetic; None where it divides by zero."""
    match tree:
        case ex.Int(value):
            return value
        case ex.Sym(name):
            return sizes[name]
        case _:
            parts = [value_of(child, sizes) for child in ex.children(tree)]
    if None in parts:
        return None
    known = [part for part in parts if part is not None]
    match tree:
        case ex.Add():
            return sum(known)
        case ex.Mul():
            return math.prod(known)
        case ex.Pow(_, exponent):
            return int(known[0] ** exponent)
        case ex.Min():
            return min(known)
        case ex.Max():
            return max(known)
        case ex.FloorDiv():
            return known[0] // known[1] if known[1] else None
        case ex.Mod():
            return known[0] % known[1] if known[1] else None


def _canonical(tree: Expr) -> Expr | None:
    try:
        return ex.canonical(tree)
    except InvalidExpression:
        return None


@cache
def exprs(names: tuple[str, ...] = NAMES, *, leaves: int = 5) -> st.SearchStrategy[Expr]:
    """Canonical expressions."""
    made = trees(names, leaves=leaves).map(_canonical)
    return made.filter(lambda expr: expr is not None).map(lambda expr: expr or ex.ZERO)


@cache
def extents(names: tuple[str, ...]) -> st.SearchStrategy[Expr]:
    """Sizes of tensors, mostly simple."""
    simple: st.SearchStrategy[Expr] = st.integers(0, 4096).map(ex.Int)
    if not names:
        return simple
    symbols = st.sampled_from(names).map(ex.Sym)
    return st.one_of(
        simple,
        symbols,
        st.builds(ex.mul, symbols, symbols),
        st.builds(ex.add, symbols, st.integers(1, 9)),
        exprs(names, leaves=3).map(lambda expr: ex.maximum(expr, 0)),
    )


SHA256 = st.binary(min_size=32, max_size=32).map(bytes.hex)
WORDS = st.from_regex(r"[a-z_][a-z0-9_]{0,12}", fullmatch=True)
TEXTS = st.text(
    st.characters(exclude_categories=("C", "Zl", "Zp"), include_characters=" "), max_size=20
)


@st.composite
def value_types(draw: st.DrawFn, names: tuple[str, ...]) -> ValueType:
    """Tensors, numbers and others."""
    kind = draw(st.sampled_from(("tensor", "tensor", "tensor", "int", "float", "other")))
    if kind == "int":
        return IntType(draw(st.none() | extents(names)))
    if kind == "other":
        return OtherType()
    if kind == "float":
        return FloatType()
    rank = draw(st.integers(0, 3))
    sizes = st.lists(extents(names), min_size=rank, max_size=rank).map(tuple)
    return TensorType(
        dtype=draw(st.sampled_from((*DTYPES, OTHER_DTYPE))),
        shape=draw(sizes),
        stride=draw(sizes),
        device=draw(st.sampled_from(("cpu", "cuda"))),
    )


@cache
def args(names: tuple[str, ...], values: int) -> st.SearchStrategy[Arg]:
    """Arguments of a node when `values` values exist."""
    leaf: st.SearchStrategy[Arg] = st.one_of(
        st.floats(allow_nan=False),
        st.booleans(),
        st.none(),
        TEXTS,
        extents(names),
        st.sampled_from(tuple(DTYPES)).map(DType),
        st.builds(Keyword, st.sampled_from(("device", "layout", "memory_format")), WORDS),
    )
    if values:
        leaf = leaf | st.integers(0, values - 1).map(Ref)
    return st.recursive(leaf, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=4)


def _refs(arg: Arg) -> list[int]:
    if isinstance(arg, Ref):
        return [arg.value]
    if isinstance(arg, tuple):
        return [value for inner in arg for value in _refs(inner)]
    return []


@st.composite
def nodes(draw: st.DrawFn, names: tuple[str, ...], values: int) -> Node:
    """A lowerable or opaque node when `values` values exist."""
    some = draw(st.lists(st.integers(0, values - 1), max_size=3)) if values else []
    is_opaque = draw(st.booleans())
    given = [] if is_opaque else draw(st.lists(args(names, values), max_size=3))
    named = {} if is_opaque else draw(st.dictionaries(WORDS, args(names, values), max_size=2))
    read = [value for arg in (*given, *named.values()) for value in _refs(arg)]
    inputs = tuple(dict.fromkeys(read + some))
    outputs = tuple(draw(st.lists(value_types(names), min_size=1, max_size=2)))
    is_aliased, is_mutated = draw(st.booleans()), draw(st.booleans())
    return Node(
        op="" if is_opaque else draw(st.sampled_from(("aten.add.Tensor", "aten.mul.Scalar"))),
        args=tuple(given),
        kwargs=tuple(named.items()),
        inputs=inputs,
        outputs=outputs,
        aliases=((0, inputs[0]),) if inputs and is_aliased else (),
        mutates=inputs[:1] if is_mutated else (),
        has_randomness=draw(st.booleans()),
        source=draw(TEXTS),
    )


@st.composite
def symbols(draw: st.DrawFn, name: str) -> Symbol:
    """A symbol with a range."""
    low = draw(st.integers(0, 64))
    high = draw(st.none() | st.integers(low, 2**62 - 1))
    return Symbol(name, low, high, draw(TEXTS))


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Legal Programs."""
    names = tuple(draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4)))
    inputs = tuple(draw(st.lists(value_types(names), max_size=3)))
    made: list[Node] = []
    values = len(inputs)
    for _ in range(draw(st.integers(0, 4))):
        node = draw(nodes(names, values))
        values += len(node.outputs)
        made.append(node)
    leaving = st.none() | st.integers(0, values - 1) if values else st.none()
    return Program(
        symbols=tuple(draw(symbols(name)) for name in names),
        inputs=inputs,
        nodes=tuple(made),
        outputs=tuple(draw(st.lists(leaving, max_size=3))),
        label=draw(TEXTS),
    )


@st.composite
def fallbacks(draw: st.DrawFn) -> Fallback:
    """Fallbacks, their dims over their Program's symbols."""
    program = draw(programs())
    names = tuple(symbol.name for symbol in program.symbols)
    values = len(program.inputs) + sum(len(node.outputs) for node in program.nodes)
    some = st.lists(st.integers(0, values - 1), max_size=3) if values else st.just([])
    return Fallback(
        program=program,
        kernel=draw(SHA256),
        dims=tuple(draw(st.lists(extents(names), max_size=3))),
        inputs=tuple(draw(some)),
        outputs=tuple(draw(some)),
    )


_SLOTS = st.integers(0, 1000)
_SLOT_LISTS = st.lists(_SLOTS, max_size=4).map(tuple)


@st.composite
def _outputs(draw: st.DrawFn) -> Output:
    rank = draw(st.integers(0, 3))
    sizes = st.lists(extents(NAMES), min_size=rank, max_size=rank).map(tuple)
    return Output(
        slot=draw(_SLOTS),
        dtype=draw(st.sampled_from(tuple(DTYPES))),
        shape=draw(sizes),
        stride=draw(sizes),
        device=draw(st.sampled_from(("cpu", "cuda"))),
        storage=draw(st.integers(-1, 3)),
    )


@st.composite
def _views(draw: st.DrawFn) -> MakeView:
    rank = draw(st.integers(0, 3))
    sizes = st.lists(extents(NAMES), min_size=rank, max_size=rank).map(tuple)
    return MakeView(
        slot=draw(_SLOTS),
        base=draw(_SLOTS),
        shape=draw(sizes),
        stride=draw(sizes),
        offset=draw(extents(NAMES)),
        node=draw(_SLOTS),
    )


STEPS: st.SearchStrategy[Step] = st.one_of(
    st.builds(
        Launch,
        kernel=SHA256,
        fallback=SHA256,
        dims=st.lists(extents(NAMES), max_size=3).map(tuple),
        inputs=_SLOT_LISTS,
        outputs=st.lists(_outputs(), max_size=2).map(tuple),
        nodes=_SLOT_LISTS,
    ),
    st.builds(RunNodes, _SLOT_LISTS),
    _views(),
    st.builds(Free, _SLOT_LISTS),
)
PLANS = st.builds(
    Plan,
    program=SHA256,
    target_kind=st.sampled_from(("cpu", "cuda")),
    compiler_version=WORDS,
    steps=st.lists(STEPS, max_size=4).map(tuple),
    storages=st.just(4),
)

DEVICES: st.SearchStrategy[Device] = st.one_of(
    st.builds(
        CpuDevice,
        model=TEXTS,
        features=st.sets(WORDS, max_size=4).map(lambda names: tuple(sorted(names))),
        libc=TEXTS,
    ),
    st.builds(
        CudaDevice,
        model=TEXTS,
        capability=st.integers(50, 120),
        multiprocessors=st.integers(1, 200),
        memory_bytes=st.integers(0, 2**40),
        driver=TEXTS,
        power_limit_w=st.integers(0, 1000),
        mig_profile=TEXTS,
    ),
)
TARGETS = st.builds(Target, DEVICES, st.lists(TEXTS, max_size=3).map(tuple))


@cache
def guards(names: tuple[str, ...]) -> st.SearchStrategy[Guard]:
    """Guards over a Kernel's symbols and four parameters."""
    kinds: list[st.SearchStrategy[Fact]] = [
        st.builds(Aligned, st.integers(0, 3), st.sampled_from((4, 16, 64)))
    ]
    if names:
        sizes = st.sampled_from(names).map(ex.Sym) | extents(names)
        kinds += [
            st.builds(Divisible, sizes, st.sampled_from((2, 8, 16))),
            st.builds(AtMost, sizes, st.integers(0, 4096)),
            st.builds(Equals, sizes, st.integers(0, 64)),
        ]
    return st.lists(st.one_of(kinds), max_size=2).map(lambda facts: Guard(tuple(facts)))


@cache
def artifacts(names: tuple[str, ...]) -> st.SearchStrategy[ArtifactRef]:
    """Artifacts of Kernels with these symbols."""
    parameters = st.integers(0, 7)
    arguments: st.SearchStrategy[Argument] = st.one_of(
        st.builds(PointerArgument, parameters),
        st.builds(ScalarArgument, parameters, st.sampled_from(("f32", "f64", "i32", "i64"))),
        st.builds(SizeArgument, extents(names), st.sampled_from(("i32", "i64"))),
        st.just(NullArgument()),
        st.builds(WorkspaceArgument, extents(names)),
        st.just(StageArgument()),
    )
    return st.builds(
        ArtifactRef,
        sha256=SHA256,
        size_bytes=st.integers(0, 2**30),
        launch=st.builds(
            CpuLaunch,
            entry=WORDS,
            work=extents(names),
            grain=st.integers(1, 2**20),
            features=st.lists(WORDS, max_size=2).map(tuple),
        )
        | st.builds(
            CudaLaunch,
            entry=WORDS,
            arguments=st.lists(arguments, max_size=4).map(tuple),
            grid=st.tuples(extents(names), extents(names), extents(names)),
            warps=st.sampled_from((1, 2, 4, 8, 16, 32)),
            shared_bytes=st.integers(0, 2**18),
            capability=st.integers(50, 120),
            stages=st.integers(1, 4),
            workspace_bytes=extents(names),
            begin_early=st.booleans(),
            inner=extents(names),
        ),
        signature=st.binary(max_size=8),
        key_id=TEXTS,
    )


TIMINGS = st.builds(
    Timing,
    # Few distinct values: ties and differences within noise are common.
    median_ns=st.sampled_from((900, 980, 990, 1000, 1010, 1500, 3000)),
    spread=st.sampled_from((0.0, 0.001, 0.01, 0.2)),
    samples=st.integers(0, 100),
    disturbed=st.integers(0, 3),
)
FALLBACKS = ("f" * 64, "e" * 64)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """Legal Tables: up to 3 symbols, 4 Variants and 6 hints, not all of them complete."""
    names = ("k0", "k1", "k2")[: draw(st.integers(0, 3))]
    variants = tuple(
        Variant(f"{number:064x}", draw(TEXTS), draw(guards(names)), draw(artifacts(names)))
        for number in range(draw(st.integers(0, 4)))
    )
    positions = range(len(variants))
    size = st.sampled_from((1, 2, 3, 4, 6, 8, 16, 64, 100, 1000))
    hints = draw(st.lists(st.tuples(*(size for _ in names)), unique=True, max_size=6))
    rows: list[HintRow] = []
    for hint in hints:
        ranked = draw(st.lists(st.sampled_from(positions), unique=True)) if variants else []
        timed = draw(st.lists(st.sampled_from(FALLBACKS), unique=True))
        rows.append(
            HintRow(
                dims=hint,
                ranked=tuple((position, draw(TIMINGS)) for position in ranked),
                fallbacks=tuple((name, draw(TIMINGS)) for name in timed),
                tier=draw(st.integers(1, 3)),
            )
        )
    pinned = st.sampled_from(("", *(variant.id for variant in variants)))
    places = draw(st.lists(st.sampled_from(((), *hints)), unique=True, max_size=3))
    return Table(
        kernel=draw(SHA256),
        target=draw(SHA256),
        symbols=names,
        variants=variants,
        default=draw(st.integers(-1, len(variants) - 1)),
        hints=tuple(rows),
        generation=draw(st.integers(0, 2**40)),
        cutoff=draw(st.sampled_from((1, 2, 4, 16))),
        reason=draw(TEXTS),
        namespace=draw(TEXTS),
        signature=draw(st.binary(max_size=8)),
        key_id=draw(TEXTS),
        pins=tuple(Pin(place, draw(pinned)) for place in places),
        probes=tuple(rows[: draw(st.integers(0, 2))]),
        selector=draw(st.sampled_from(("", "nearest", "of a newer daemon"))),
    )


SLOWER = st.builds(
    Timing,
    median_ns=st.sampled_from((980, 1010, 1500, 3000, 9000)),
    spread=st.sampled_from((0.0, 0.01, 0.2)),
)


@st.composite
def tuned_tables(draw: st.DrawFn) -> Table:
    """Tables in use: 1 to 3 symbols, most hints complete, the Fallback mostly slower."""
    names = ("k0", "k1", "k2")[: draw(st.integers(1, 3))]
    artifact = ArtifactRef("a" * 64, 1, CpuLaunch("f", ex.Sym(names[0]), 1))
    count = draw(st.integers(1, 4))
    some_guards = st.just(Guard()) | guards(names)
    size = st.sampled_from((1, 2, 3, 4, 6, 8, 16, 64, 100))
    rows: list[HintRow] = []
    for hint in draw(st.lists(st.tuples(*(size for _ in names)), unique=True, min_size=1)):
        ranked = draw(st.permutations(range(count)))
        timed = draw(st.sampled_from((FALLBACKS, FALLBACKS, FALLBACKS[:1], FALLBACKS[1:])))
        rows.append(
            HintRow(
                dims=hint,
                ranked=tuple((position, draw(TIMINGS)) for position in ranked),
                fallbacks=tuple((name, draw(SLOWER)) for name in timed),
                tier=draw(st.integers(1, 3)),
            )
        )
    return Table(
        kernel="1" * 64,
        target="2" * 64,
        symbols=names,
        variants=tuple(
            Variant(f"{number:064x}", "", draw(some_guards), artifact) for number in range(count)
        ),
        default=draw(st.integers(0, count - 1)),
        hints=tuple(rows),
        generation=draw(st.integers(0, 9)),
        cutoff=draw(st.sampled_from((2, 4, 16))),
        pins=draw(
            st.just(())
            | st.builds(
                Pin,
                st.sampled_from(((), rows[0].dims)),
                st.sampled_from(("", *(f"{number:064x}" for number in range(count)))),
            ).map(lambda pin: (pin,))
        ),
    )
