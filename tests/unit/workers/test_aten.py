"""Fallbacks run from a table of pure ops, and nothing else runs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch
from tests.unit.workers.building import S0, S1, attention_weights, node, norm, tensor

from nearhint_compiler.frontend.lower import TABLE
from nearhint_daemon.workers.aten import OWN, AtenProgram, Value
from nearhint_daemon.workers.aten_ops import ALLOWED, HALF_TO_FLOAT
from nearhint_daemon.workers.elements import DRAWN_ELEMENTS
from nearhint_daemon.workers.errors import FallbackInvalid, MemoryLimitExceeded, OpNotAllowed
from nearhint_daemon.workers.inputs import (
    TensorSpec,
    as_tensor,
    check_memory,
    flat_storage,
    peak_bytes,
    random_tensor,
    random_values,
    tensor_spec,
    within_ranges,
)
from nearhint_rules import expr as ex
from nearhint_rules import program as pr

SIZES = {"s0": 2, "s1": 5}


def schema_of(op: str) -> torch.FunctionSchema:
    namespace, name, overload = ALLOWED[op]
    found = getattr(getattr(getattr(torch.ops, namespace), name), overload)._schema
    assert isinstance(found, torch.FunctionSchema)
    return found


def test_every_op_that_is_lowered_runs_as_a_fallback() -> None:
    assert set(TABLE) - set(ALLOWED) == set(OWN)


@pytest.mark.parametrize("op", sorted(ALLOWED))
def test_every_allowed_op_exists_and_is_pure(op: str) -> None:
    schema = schema_of(op)
    assert not schema.is_mutable
    assert not schema.name.endswith("_") or schema.name.endswith("shift__")
    for argument in schema.arguments:
        assert argument.name not in {"generator", "filename", "path", "out"}
    tags = getattr(getattr(torch.ops, ALLOWED[op][0]), ALLOWED[op][1])
    assert torch.Tag.nondeterministic_seeded not in getattr(tags, ALLOWED[op][2]).tags


@pytest.mark.parametrize("op", HALF_TO_FLOAT)
def test_the_argument_that_f64_refuses_is_where_the_table_says(op: str) -> None:
    assert schema_of(op).arguments[HALF_TO_FLOAT[op]].name == "half_to_float"


@pytest.mark.parametrize(
    "op",
    [
        "aten.from_file.default",
        "aten.add_.Tensor",
        "aten.add.out",
        "aten.bernoulli.default",
        "aten.rand.default",
        "prims.device_put.default",
        "os.system.default",
        "",
    ],
)
def test_any_other_op_is_refused_before_anything_runs(op: str) -> None:
    program = pr.Program((), (tensor(2),), (pr.Node(op, (), (), (0,), (tensor(2),)),), (1,))
    with pytest.raises(OpNotAllowed, match=r"nodes\[0\]"):
        AtenProgram(program, {}, precision="native", device="cpu")


@pytest.mark.parametrize("facts", [{"mutates": (0,)}, {"has_randomness": True}])
def test_a_node_that_says_it_has_effects_is_refused(facts: dict[str, object]) -> None:
    step = pr.Node("aten.abs.default", (pr.Ref(0),), (), (0,), (tensor(2),), **facts)  # type: ignore[arg-type]
    program = pr.Program((), (tensor(2),), (step,), (1,))
    with pytest.raises(OpNotAllowed):
        AtenProgram(program, {}, precision="native", device="cpu")


def values_of(program: pr.Program, precision: str) -> tuple[AtenProgram, list[Value]]:
    generator = torch.Generator().manual_seed(1)
    ready = AtenProgram(program, SIZES, precision=precision, device="cpu")
    inputs = random_values(program, SIZES, precision=precision, device="cpu", generator=generator)
    return ready, inputs


def outputs_of(program: AtenProgram, inputs: Sequence[Value]) -> tuple[torch.Tensor, ...]:
    outputs = program.caller(inputs)()
    assert isinstance(outputs, tuple)
    return outputs


def test_a_program_of_one_op_is_called_as_that_op() -> None:
    x = tensor(S0, 4)
    program = pr.Program(
        (pr.Symbol("s0", 1, 9),), (x,), (node("exp.default", pr.Ref(0), makes=(x,)),), (1,)
    )
    ready = AtenProgram(program, {"s0": 3}, precision="native", device="cpu")
    given = torch.ones(3, 4)
    found = ready.caller([given])()
    assert isinstance(found, torch.Tensor)
    assert found.equal(given.exp())


@pytest.mark.parametrize("precision", ["native", "f64"])
def test_a_cast_makes_nan_of_what_is_too_large_whatever_torch_does(precision: str) -> None:
    x, made = tensor(6), tensor(6, dtype="f8e4m3fn")
    cast = pr.Node(
        "nearhint.cast_or_nan.default",
        (pr.Ref(0),),
        (("dtype", pr.DType("f8e4m3fn")),),
        (0,),
        (made,),
    )
    ready = AtenProgram(pr.Program((), (x,), (cast,), (1,)), {}, precision=precision, device="cpu")
    given = torch.tensor([1.0, 448.0, 464.0, 465.0, -1e4, torch.inf])
    (found,) = [value for value in ready.values([given]) if value is not given]
    nan = torch.nan
    expected = torch.tensor([1.0, 448.0, 448.0, nan, nan, nan])
    torch.testing.assert_close(found.float(), expected, equal_nan=True)


def test_a_program_gives_what_eager_gives() -> None:
    ready, inputs = values_of(norm(), "native")
    x, y, weight, bias = (value for value in inputs if isinstance(value, torch.Tensor))
    wanted = torch.nn.functional.layer_norm(x + y, (48,), weight, bias, 1e-5)
    torch.testing.assert_close(ready.values(inputs)[5], wanted, rtol=0, atol=0)
    (found,) = outputs_of(ready, inputs)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


def test_f64_replaces_every_float() -> None:
    ready, inputs = values_of(attention_weights(), "f64")
    found = ready.values(inputs)[4]
    native, same = values_of(attention_weights(), "native")
    assert found.dtype == torch.float64
    torch.testing.assert_close(found.float(), native.values(same)[4], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("dtype", "number"), [("f16", 0.1), ("bf16", 1 / 3), ("bf16", 257)])
def test_f64_compares_with_the_number_that_low_precision_has(dtype: str, number: float) -> None:
    """The lowering compares so, too; and a tenth is no half float."""
    given = ex.Int(number) if isinstance(number, int) else number
    makes = tensor(S0, dtype="bool")
    compared = node("eq.Scalar", pr.Ref(0), given, makes=(makes,))
    program = pr.Program((pr.Symbol("s0", 1),), (tensor(S0, dtype=dtype),), (compared,), (1,))
    own = torch.float16 if dtype == "f16" else torch.bfloat16
    x = torch.tensor([number, -number, 2 * number], dtype=own)
    ready = AtenProgram(program, {"s0": 3}, precision="f64", device="cpu")
    assert ready.values([x.double()])[1].tolist() == (x == number).tolist() == [True, False, False]


def test_f64_leaves_the_remainder_of_the_number_that_low_precision_has() -> None:
    makes = tensor(S0, dtype="f16")
    left = node("remainder.Scalar", pr.Ref(0), 0.1, makes=(makes,))
    program = pr.Program((pr.Symbol("s0", 1),), (makes,), (left,), (1,))
    x = torch.tensor([0.5, 0.3, 7.7], dtype=torch.float16)
    ready = AtenProgram(program, {"s0": 3}, precision="f64", device="cpu")
    torch.testing.assert_close(ready.values([x.double()])[1].half(), x % 0.1, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("fills", [(), (0.5, None, -3.0)])
def test_f64_replaces_what_its_own_dtype_has_no_number_for(
    dtype: torch.dtype, fills: tuple[float | None, ...]
) -> None:
    name = {torch.float16: "f16", torch.bfloat16: "bf16", torch.float32: "f32"}[dtype]
    makes = tensor(S0, dtype=name)
    replaced = node("nan_to_num.default", pr.Ref(0), *fills, makes=(makes,))
    program = pr.Program((pr.Symbol("s0", 1),), (makes,), (replaced,), (1,))
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.5, 1e39, -1e39], dtype=torch.float64)
    (found,) = AtenProgram(program, {"s0": 6}, precision="f64", device="cpu").values([x])[1:]
    assert found.dtype == torch.float64
    assert found.tolist() == x.to(dtype).nan_to_num(*fills).tolist()


@pytest.mark.parametrize(("op", "numbers"), [("isinf.default", ()), ("ne.Scalar", (math.inf,))])
def test_f64_has_the_infinities_that_low_precision_has(op: str, numbers: tuple[float, ...]) -> None:
    makes = tensor(S0, dtype="bool")
    asks = node(op, pr.Ref(0), *numbers, makes=(makes,))
    program = pr.Program((pr.Symbol("s0", 1),), (tensor(S0, dtype="f16"),), (asks,), (1,))
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.5, 1e5, -1e5], dtype=torch.float64)
    (found,) = AtenProgram(program, {"s0": 6}, precision="f64", device="cpu").values([x])[1:]
    assert found.equal(torch.isinf(x.half()) if not numbers else x.half() != math.inf)


def test_keywords_lists_of_tensors_and_split_results_run() -> None:
    x, half = tensor(S0, 4), tensor(S0, 2)
    program = pr.Program(
        (pr.Symbol("s0", 1, 9),),
        (x,),
        (
            node("split.Tensor", pr.Ref(0), ex.Int(2), ex.Int(1), makes=(half, half)),
            node("cat.default", (pr.Ref(2), pr.Ref(1)), ex.Int(1), makes=(x,)),
            pr.Node(
                "aten._to_copy.default",
                (pr.Ref(3),),
                (("dtype", pr.DType("f16")), ("device", pr.Keyword("device", "cpu"))),
                (3,),
                (tensor(S0, 4, dtype="f16"),),
            ),
        ),
        (4,),
    )
    inputs = [torch.arange(12.0).reshape(3, 4)]
    ready = AtenProgram(program, {"s0": 3}, precision="native", device="cpu")
    found = ready.values(inputs)[4]
    assert found.dtype == torch.float16
    assert found[0].tolist() == [2.0, 3.0, 0.0, 1.0]
    assert outputs_of(ready, inputs)[0].equal(found)


def test_arguments_that_do_not_fit_are_a_typed_error() -> None:
    program = pr.Program(
        (), (tensor(2),), (node("view.default", pr.Ref(0), (ex.Int(3),), makes=(tensor(3),)),), (1,)
    )
    ready = AtenProgram(program, {}, precision="native", device="cpu")
    with pytest.raises(FallbackInvalid, match="view"):
        ready.values([torch.zeros(2)])


def test_inputs_have_exact_shapes_strides_and_dtypes() -> None:
    strided = pr.TensorType("bf16", (S0, S1), (ex.ONE, ex.mul(3, S0)))
    expanded = pr.TensorType("bool", (S0, S1), (ex.ZERO, ex.ONE))
    program = pr.Program(
        (), (strided, expanded, pr.IntType(ex.mul(S0, S1)), tensor(dtype="i64")), (), ()
    )
    made = random_values(
        program, SIZES, precision="native", device="cpu", generator=torch.Generator()
    )
    first, second, third, fourth = made
    assert isinstance(first, torch.Tensor)
    assert isinstance(second, torch.Tensor)
    assert isinstance(fourth, torch.Tensor)
    assert (first.shape, first.stride(), first.dtype) == ((2, 5), (1, 6), torch.bfloat16)
    assert (second.shape, second.stride(), second.dtype) == ((2, 5), (0, 1), torch.bool)
    assert third == 10
    assert fourth.shape == ()
    assert fourth.item() > 0


@pytest.mark.parametrize("dtype", ["bf16", "f8e4m3fn", "f8e5m2"])
def test_f64_inputs_are_the_native_ones(dtype: str) -> None:
    spec = TensorSpec(dtype, (40,), (1,), "cpu")
    pair = [
        random_tensor(spec, precision, "cpu", torch.Generator().manual_seed(3), scale=1.0)
        for precision in ("native", "f64")
    ]
    assert pair[0].double().equal(pair[1])


def choosing(rows: int, length: int) -> pr.Program:
    """What chooses one element of each of `rows` rows."""
    found = tensor(rows, 1)
    step = node("gather.default", pr.Ref(0), ex.Int(-1), pr.Ref(1), makes=(found,))
    return pr.Program((), (tensor(rows, length), tensor(rows, 1, dtype="i64")), (step,), (2,))


@pytest.mark.parametrize("length", [1, 2, 5, 40])
def test_integers_are_places_in_the_rows_that_they_choose_of(length: int) -> None:
    program = choosing(50, length)
    x, place = random_values(
        program, {}, precision="f64", device="cpu", generator=torch.Generator().manual_seed(3)
    )
    assert isinstance(x, torch.Tensor)
    assert isinstance(place, torch.Tensor)
    assert 0 <= int(place.min()) <= int(place.max()) < length
    (*_, found) = AtenProgram(program, {}, precision="f64", device="cpu").values([x, place])
    assert torch.equal(found, x.gather(-1, place))


def test_what_is_chosen_beyond_a_row_is_asked_of_no_device() -> None:
    program = AtenProgram(choosing(2, 3), {}, precision="f64", device="cpu")
    x, place = torch.arange(6.0).view(2, 3), torch.tensor([[7], [-1]])
    (*_, found) = program.values([x, place])
    assert found.tolist() == [[2.0], [3.0]]


def looking_up(*, computed: bool) -> pr.Program:
    """Rows of a table of nine at places that are given, or at the square of them."""
    indices = tensor(5, dtype="i64")
    steps = [node("mul.Tensor", pr.Ref(1), pr.Ref(1), makes=(indices,))] if computed else []
    place = 2 if computed else 1
    steps.append(node("embedding.default", pr.Ref(0), pr.Ref(place), makes=(tensor(5, 4),)))
    return pr.Program((), (tensor(9, 4), indices), tuple(steps), (place + 1,))


@pytest.mark.parametrize(("precision", "computed"), [("f64", False), ("native", True)])
def test_places_that_there_are_not_are_asked_of_no_table(precision: str, computed: bool) -> None:
    program = AtenProgram(looking_up(computed=computed), {}, precision=precision, device="cpu")
    table, given = torch.arange(36.0).view(9, 4), torch.tensor([0, 2, 3, 50, 8 + 10 * computed])
    (*_, found) = program.values([table, given])
    last = [0, 4, 8, 8, 8] if computed else [0, 2, 3, 8, 8]
    assert torch.equal(found, table[last])


def test_of_several_places_one_that_there_is_not_leads_to_the_first_of_all() -> None:
    indices = tensor(5, dtype="i64")
    step = node("index.Tensor", pr.Ref(0), (pr.Ref(1), pr.Ref(2)), makes=(tensor(5, 4),))
    program = pr.Program((), (tensor(9, 3, 4), indices, indices), (step,), (3,))
    table = torch.arange(108.0).view(9, 3, 4)
    given = torch.tensor([8, -9, 2, 9, -10]), torch.tensor([2, -3, 3, 1, 0])
    (*_, found) = AtenProgram(program, {}, precision="f64", device="cpu").values([table, *given])
    assert torch.equal(found, table[[8, 0, 0, 0, 0], [2, 0, 0, 0, 0]])


@pytest.mark.parametrize("op", ["scatter.src", "scatter.value"])
def test_what_is_put_at_places_is_put_in_turn_and_nowhere_beyond_a_row(op: str) -> None:
    places, put = tensor(3, 2, dtype="i64"), tensor(3, 2)
    inputs = (tensor(3, 4), places, *((put,) if op == "scatter.src" else ()))
    value = pr.Ref(2) if op == "scatter.src" else 7.0
    step = node(op, pr.Ref(0), ex.Int(1), pr.Ref(1), value, makes=(tensor(3, 4),))
    program = pr.Program((), inputs, (step,), (len(inputs),))
    drawn = random_values(
        program, {}, precision="native", device="cpu", generator=torch.Generator().manual_seed(3)
    )
    assert isinstance(drawn[1], torch.Tensor)
    assert 0 <= int(drawn[1].min()) <= int(drawn[1].max()) < 4
    given = [torch.zeros(3, 4), torch.tensor([[0, 3], [2, 2], [4, -1]]), torch.ones(3, 2)]
    given[2][:, 1] = 2
    ran = AtenProgram(program, {}, precision="f64", device="cpu").values(given[: len(inputs)])
    first, last = (1, 2) if op == "scatter.src" else (7, 7)
    assert ran[-1].tolist() == [[first, 0, 0, last], [0, 0, last, 0], [0, 0, 0, 0]]


ROWS, ONES = tensor(5, dtype="i64"), tensor(5, 4)
ADDED: dict[str, tuple[pr.Node, tuple[pr.TensorType, ...], int]] = {
    "index_add": (
        node(
            "index_add.default", pr.Ref(0), ex.Int(0), pr.Ref(1), pr.Ref(2), makes=(tensor(3, 4),)
        ),
        (tensor(3, 4), ROWS, ONES),
        0,
    ),
    "scatter_add": (
        node(
            "scatter_add.default", pr.Ref(0), ex.Int(0), pr.Ref(1), pr.Ref(2), makes=(tensor(3, 4),)
        ),
        (tensor(3, 4), tensor(5, 4, dtype="i64"), ONES),
        0,
    ),
    "index_put": (
        node("index_put.default", pr.Ref(0), (pr.Ref(1),), pr.Ref(2), True, makes=(tensor(3, 4),)),
        (tensor(3, 4), ROWS, ONES),
        -3,
    ),
    "embedding_dense_backward": (
        node(
            "embedding_dense_backward.default",
            *(pr.Ref(2), pr.Ref(1), ex.Int(3), ex.Int(-1), False),
            makes=(tensor(3, 4),),
        ),
        (tensor(3, 4), ROWS, ONES),
        0,
    ),
}


@pytest.mark.parametrize("name", ADDED)
def test_what_is_added_at_places_is_added_at_none_beyond_them(name: str) -> None:
    step, inputs, low = ADDED[name]
    program = pr.Program((), inputs, (step,), (3,))
    drawn = random_values(
        program, {}, precision="native", device="cpu", generator=torch.Generator().manual_seed(3)
    )
    assert isinstance(drawn[1], torch.Tensor)
    assert low <= int(drawn[1].min()) <= int(drawn[1].max()) < 3
    places = torch.tensor([0, 2, 2, 3, low - 1])
    if len(inputs[1].shape) > 1:
        places = places[:, None].expand(5, 4).contiguous()
    given = [torch.zeros(3, 4), places, torch.ones(5, 4)]
    ran = AtenProgram(program, {}, precision="f64", device="cpu").values(given)
    assert ran[-1].tolist() == [[1] * 4, [0] * 4, [2] * 4]


def test_places_that_are_given_are_read_by_the_op_as_it_serves() -> None:
    program = AtenProgram(looking_up(computed=False), {}, precision="native", device="cpu")
    with pytest.raises(FallbackInvalid):
        program.values([torch.zeros(9, 4), torch.tensor([0, 1, 2, 3, 9])])


@pytest.mark.parametrize("copying", ["alias.default", "lift_fresh_copy.default"])
@pytest.mark.parametrize("op", ["index_select.default", "index.Tensor"])
def test_places_are_drawn_from_all_that_there_are(op: str, copying: str) -> None:
    indices, view = tensor(500, dtype="i64"), tensor(500, dtype="i64")
    args = (ex.Int(0), pr.Ref(2)) if op == "index_select.default" else ((pr.Ref(2),),)
    steps = (
        node(copying, pr.Ref(1), makes=(view,)),
        node(op, pr.Ref(0), *args, makes=(tensor(500, 4),)),
    )
    program = pr.Program((), (tensor(9, 4), indices), steps, (3,))
    generator = torch.Generator().manual_seed(3)
    _, place = random_values(program, {}, precision="native", device="cpu", generator=generator)
    assert isinstance(place, torch.Tensor)
    assert {*place.tolist()} == {*range(-9 if op == "index.Tensor" else 0, 9)}


@pytest.mark.parametrize("op", ["index_select.default", "gather.default", "index.Tensor"])
def test_a_table_of_places_is_drawn_from_those_that_it_names(op: str) -> None:
    """Kinds of tokens, by position, and a row for each of two kinds: as BERT has them."""
    indices = tensor(500, dtype="i64")
    args = ((pr.Ref(2),),) if op == "index.Tensor" else (ex.Int(0), pr.Ref(2))
    steps = (
        node(op, pr.Ref(1), *args, makes=(tensor(500, dtype="i64"),)),
        node("embedding.default", pr.Ref(0), pr.Ref(3), makes=(tensor(500, 4),)),
    )
    program = pr.Program((), (tensor(2, 4), tensor(40, dtype="i64"), indices), steps, (4,))
    values = random_values(
        program, {}, precision="native", device="cpu", generator=torch.Generator().manual_seed(3)
    )
    _, kinds, place = values
    assert isinstance(kinds, torch.Tensor)
    assert isinstance(place, torch.Tensor)
    assert {*kinds.tolist()} == {0, 1}
    assert {*place.tolist()} == {*range(-40 if op == "index.Tensor" else 0, 40)}
    AtenProgram(program, {}, precision="native", device="cpu").values(values)


def test_a_tensor_longer_than_what_is_drawn_repeats_it_in_a_storage_of_its_own_size() -> None:
    count = 2 * DRAWN_ELEMENTS + 5
    spec = TensorSpec("bf16", (count,), (1,), "cpu")
    made = random_tensor(spec, "native", "cpu", torch.Generator().manual_seed(3), scale=1.0)
    assert made.untyped_storage().nbytes() == 2 * count
    first, second = made[:DRAWN_ELEMENTS], made[DRAWN_ELEMENTS : 2 * DRAWN_ELEMENTS]
    assert torch.equal(first, second)
    assert torch.equal(made[-5:], made[:5])
    assert int((first != first[0]).sum()) > 1000


def test_what_is_too_large_for_f8e4m3fn_is_its_largest_number_in_f64_too() -> None:
    wide, narrow = tensor(S0), tensor(S0, dtype="f8e4m3fn")
    program = pr.Program(
        (pr.Symbol("s0", 1),),
        (wide,),
        (
            pr.Node(
                "aten._to_copy.default",
                (pr.Ref(0),),
                (("dtype", pr.DType("f8e4m3fn")),),
                (0,),
                (narrow,),
            ),
            node("alias.default", pr.Ref(1), makes=(narrow,)),
        ),
        (2,),
    )
    ready = AtenProgram(program, {"s0": 4}, precision="f64", device="cpu")
    given = torch.tensor([1.01, 500.0, -torch.inf, torch.nan], dtype=torch.float64)
    *_, made = ready.values([given])
    wanted = torch.tensor([1.01, 448.0, -448.0, torch.nan], dtype=torch.float64)
    torch.testing.assert_close(made, wanted, equal_nan=True, rtol=0, atol=0)


def test_bytes_are_counted_before_anything_is_allocated() -> None:
    huge = {"s0": 1 << 40, "s1": 1 << 20}
    with pytest.raises(MemoryLimitExceeded):
        check_memory(norm(), huge, limit_bytes=1 << 40)
    check_memory(norm(), SIZES, limit_bytes=1 << 20)


def test_a_run_that_frees_what_it_has_read_needs_what_is_alive_at_once() -> None:
    """Of a chain: what is given, what is read, and what is made of that; a view keeps its own."""
    x, turned = tensor(S0, S1), tensor(S1, S0)
    chain = [node("mul.Tensor", pr.Ref(value), 2.0, makes=(x,)) for value in range(6)]
    view = pr.Node("aten.t.default", (pr.Ref(6),), (), (6,), (turned,), ((0, 6),))
    last = node("exp.default", pr.Ref(7), makes=(turned,))
    symbols = (pr.Symbol("s0", 1, 64), pr.Symbol("s1", 1, 64))
    program = pr.Program(symbols, (x,), (*chain, view, last), (8,))
    one = 4 * SIZES["s0"] * SIZES["s1"]
    assert peak_bytes(program, SIZES) == 3 * one
    assert peak_bytes(program, SIZES, precision="f64") == 6 * one
    assert peak_bytes(program, SIZES, beside=(2,)) == 4 * one
    inputs = random_values(
        program, SIZES, precision="f32", device="cpu", generator=torch.Generator().manual_seed(0)
    )
    ready = AtenProgram(program, SIZES, precision="f32", device="cpu")
    kept = ready.values(inputs, kept={2})
    assert [number for number, value in enumerate(kept) if value is not None] == [0, 2, 8]
    assert torch.equal(kept[8], ready.values(inputs)[8])
    check_memory(program, SIZES, limit_bytes=3 * one, frees=True)
    with pytest.raises(MemoryLimitExceeded):
        check_memory(program, SIZES, limit_bytes=3 * one)
    assert tensor_spec(tensor(S0, 3), {"s0": 0}).size_bytes == 0


def test_a_flat_storage_begins_at_the_first_element() -> None:
    base = torch.arange(20.0)
    assert flat_storage(base[4:10:2])[:3].tolist() == [4.0, 5.0, 6.0]


def test_sizes_stay_within_the_assumed_ranges() -> None:
    program = pr.Program((pr.Symbol("s0", 2, 4), pr.Symbol("s1", 5)), (), (), ())
    assert within_ranges(program, (1,)) == {"s0": 2, "s1": 5}
    assert within_ranges(program, (100, 7)) == {"s0": 4, "s1": 7}


def test_nothing_is_known_about_an_opaque_input() -> None:
    program = pr.Program((), (pr.OtherType(),), (), ())
    with pytest.raises(FallbackInvalid):
        random_values(program, {}, precision="native", device="cpu", generator=torch.Generator())


def numbered(*more: pr.ValueType) -> tuple[pr.ValueType, ...]:
    """A vector, and an integer that no size determines."""
    return (tensor(S0), pr.IntType(None), *more)


@pytest.mark.parametrize("precision", ["native", "f64"])
def test_integers_that_no_size_determines_are_drawn(precision: str) -> None:
    step = node("mul.Tensor", pr.Ref(0), pr.Ref(1), makes=(tensor(S0),))
    program = pr.Program((pr.Symbol("s0"),), numbered(), (step,), (2,))
    found: set[int] = set()
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        x, number = random_values(
            program, SIZES, precision=precision, device="cpu", generator=generator
        )
        assert isinstance(number, int)
        assert isinstance(x, torch.Tensor)
        ready = AtenProgram(program, SIZES, precision=precision, device="cpu")
        assert torch.equal(ready.values([x, number])[2], x * number)
        found.add(number)
    assert found == {1, 2, 3, 4, 5, 6}


def test_numbers_with_a_fraction_are_drawn_from_those_that_all_dtypes_hold() -> None:
    program = pr.Program((), (pr.FloatType(),), (), ())
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        (made,) = random_values(program, {}, precision="native", device="cpu", generator=generator)
        assert isinstance(made, float)
        assert 0 < made <= 6
        assert torch.tensor(made, dtype=torch.bfloat16).item() == made
        assert torch.equal(as_tensor(made), torch.tensor(made, dtype=torch.float64))


def test_a_number_may_be_a_keyword_s() -> None:
    scaled = pr.Node(
        "aten.add.Tensor", (pr.Ref(0), pr.Ref(0)), (("alpha", pr.Ref(1)),), (0, 1), (tensor(S0),)
    )
    program = pr.Program((pr.Symbol("s0"),), numbered(), (scaled,), (2,))
    ready = AtenProgram(program, SIZES, precision="native", device="cpu")
    assert ready.values([torch.ones(2), 5])[2].tolist() == [6.0, 6.0]


@pytest.mark.parametrize(
    ("overload", "args", "given", "counted"),
    [
        ("start", (pr.Ref(0), pr.Ref(1)), [4, 2], [4, 5, 6, 7, 8]),
        ("start_step", (pr.Ref(0), pr.Ref(1), ex.Int(-3)), [4, 2], [4, 1, -2, -5, -8]),
        ("start_step", (ex.Int(1), pr.Ref(1), 2.0), [4, 2.5], [1.0, 3.0, 5.0, 7.0, 9.0]),
        ("start", (ex.Int(1), pr.Ref(1)), [4, 2.5], [1.0, 2.0, 3.0, 4.0, 5.0]),
        ("default", (pr.Ref(1),), [4, 2.5], [0.0, 1.0, 2.0, 3.0, 4.0]),
    ],
)
def test_as_many_numbers_are_counted_from_a_drawn_one_as_are_declared(
    overload: str, args: tuple[pr.Arg, ...], given: list[float], counted: list[float]
) -> None:
    """Both ends are drawn, and nothing says how far they are apart."""
    dtype = "i64" if all(isinstance(number, int) for number in given) else "f32"
    step = node(f"arange.{overload}", *args, makes=(tensor(S1, dtype=dtype),))
    end = pr.IntType(None) if dtype == "i64" else pr.FloatType()
    program = pr.Program((pr.Symbol("s1"),), (pr.IntType(None), end), (step,), (2,))
    ready = AtenProgram(program, SIZES, precision="native", device="cpu")
    made = ready.values(given)[2]
    assert made.tolist() == counted
    assert made.dtype == (torch.int64 if dtype == "i64" else torch.float32)


def test_numbers_are_handed_to_kernels_as_tensors_of_the_host() -> None:
    made = as_tensor(-(2**40))
    assert (made.shape, made.dtype, made.item()) == ((), torch.int64, -(2**40))
    x = torch.ones(3)
    assert as_tensor(x) is x
