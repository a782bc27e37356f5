"""Programs: one identity a graph, whatever its symbols are called; slices that stand alone."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from hypothesis import assume, example, given
from hypothesis import strategies as st
from tests.property.examples import examples
from tests.property.strategies import NAMES, exprs, programs

from nearhint_rules import expr as ex
from nearhint_rules.canonical import encode
from nearhint_rules.expr import Expr
from nearhint_rules.naming import number_symbols
from nearhint_rules.program import (
    IntType,
    Node,
    Program,
    Symbol,
    canonical_names,
    canonicalise,
    check,
    first_outputs,
    map_arg,
    map_type,
    slice_program,
    value_types,
)


def renamed(program: Program, names: dict[str, str]) -> Program:
    symbols: dict[str, Expr] = {old: ex.Sym(new) for old, new in names.items()}
    values = {value: value for value in range(len(value_types(program)))}
    return replace(
        program,
        symbols=tuple(
            Symbol(names[symbol.name], symbol.low, symbol.high, symbol.user_name)
            for symbol in program.symbols
        ),
        inputs=tuple(map_type(value_type, symbols) for value_type in program.inputs),
        nodes=tuple(
            replace(
                node,
                args=tuple(map_arg(arg, values=values, symbols=symbols) for arg in node.args),
                kwargs=tuple(
                    (key, map_arg(arg, values=values, symbols=symbols)) for key, arg in node.kwargs
                ),
                outputs=tuple(map_type(out, symbols) for out in node.outputs),
            )
            for node in program.nodes
        ),
    )


@given(programs())
def test_drawn_programs_are_legal(program: Program) -> None:
    check(program)
    check(canonicalise(program))


@given(programs(), st.permutations(("a", "zz", "s7", "s3", "m")))
def test_identity_does_not_depend_on_symbol_names(program: Program, names: list[str]) -> None:
    other = renamed(program, {symbol.name: names[at] for at, symbol in enumerate(program.symbols)})
    assert encode(canonicalise(other)) == encode(canonicalise(program))
    assert other.id == program.id


@given(programs(), st.randoms(use_true_random=False))
def test_identity_does_not_depend_on_the_order_of_declarations(
    program: Program, random: Random
) -> None:
    shuffled = list(program.symbols)
    random.shuffle(shuffled)
    assert replace(program, symbols=tuple(shuffled)).id == program.id


KEYWORDS_OUT_OF_ORDER = Program(
    (Symbol("s0", 0, None), Symbol("s1", 0, None)),
    (),
    (
        Node(
            op="aten.add.Tensor",
            args=(),
            kwargs=(("b", ex.Sym("s0")), ("a", ex.mul(ex.Sym("s0"), ex.Sym("s1")))),
            inputs=(),
            outputs=(IntType(None),),
        ),
    ),
    (0,),
)


@given(programs())
@example(KEYWORDS_OUT_OF_ORDER)
def test_canonical_programs_are_fixed_points(program: Program) -> None:
    once = canonicalise(program)
    assert encode(canonicalise(once)) == encode(once)


@given(programs())
def test_identity_ignores_labels_sources_and_user_names(program: Program) -> None:
    stripped = replace(
        program,
        label="",
        nodes=tuple(replace(node, source="") for node in program.nodes),
        symbols=tuple(replace(symbol, user_name="") for symbol in program.symbols),
    )
    assert stripped.id == program.id


@given(programs())
def test_identity_knows_ranges(program: Program) -> None:
    used = canonical_names(program)
    assume(used)
    name = next(iter(used))
    changed = replace(
        program,
        symbols=tuple(
            replace(symbol, low=symbol.low + 1, high=None if symbol.high else 2**61)
            if symbol.name == name
            else symbol
            for symbol in program.symbols
        ),
    )
    assert changed.id != program.id


@examples(200)
@given(st.lists(exprs(leaves=4), max_size=4), st.permutations(NAMES))
@example([ex.floordiv(7, ex.mod(ex.Sym("s1"), ex.Sym("s2")))], list(NAMES))
@example([ex.sub(ex.Sym("s1"), ex.Sym("s2"))], list(NAMES))
def test_symbols_are_numbered_alike_under_any_names(found: list[Expr], names: list[str]) -> None:
    renaming: dict[str, Expr] = {old: ex.Sym(new) for old, new in zip(NAMES, names, strict=True)}
    other = [ex.substitute(expr, renaming) for expr in found]

    def numbered(given_exprs: list[Expr]) -> list[Expr]:
        order = number_symbols(given_exprs, {})
        final: dict[str, Expr] = {name: ex.Sym(f"n{at}") for at, name in enumerate(order)}
        return [ex.substitute(expr, final) for expr in given_exprs]

    assert numbered(found) == numbered(other)


@examples(200)
@given(programs(), st.data())
def test_a_slice_is_a_legal_program_over_the_same_nodes(
    program: Program, data: st.DataObject
) -> None:
    assume(program.nodes)
    chosen = data.draw(st.sets(st.integers(0, len(program.nodes) - 1), min_size=1))
    starts = first_outputs(program)
    last = max(chosen)
    part, read, names = slice_program(program, chosen, [starts[last]])
    check(part)
    assert canonicalise(part) == part
    assert [node.op for node in part.nodes] == [program.nodes[at].op for at in sorted(chosen)]
    assert len(read) == len(part.inputs)
    assert set(names.values()) == {symbol.name for symbol in part.symbols}
    types = value_types(program)
    renaming: dict[str, Expr] = {old: ex.Sym(new) for old, new in names.items()}
    assert part.inputs == tuple(map_type(types[value], renaming) for value in read)
    (leaving,) = part.outputs
    assert leaving is not None
    assert value_types(part)[leaving] == map_type(types[starts[last]], renaming)
    made = {
        starts[at] + offset for at in chosen for offset in range(len(program.nodes[at].outputs))
    }
    assert made.isdisjoint(read)
