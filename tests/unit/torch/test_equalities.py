"""What guards say of sizes is used, and nothing more than they say."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.compiler.frontend.running import check, record
from torch.nn import functional

from nearhint_compiler.pipeline import lower
from nearhint_rules import expr as ex
from nearhint_rules.errors import InvalidExpression
from nearhint_rules.plan import Launch
from nearhint_rules.program import TensorType
from nearhint_torch.adapter import ShapeFacts
from nearhint_torch.equalities import Beyond, Equation, equalities

Tensor = torch.Tensor
S0, S1, S2 = (ex.symbol(name) for name in ("s0", "s1", "s2"))
HALF, OTHER_HALF = ex.floordiv(ex.add(S0, 1), 2), ex.floordiv(S0, 2)
BLOCKS = ex.floordiv(ex.mul(S0, S1), 32)
CASES: dict[str, tuple[list[Equation], dict[str, int], dict[str, ex.Expr]]] = {
    "multiple": ([(ex.mul(S0, S1), ex.mul(32, S1, ex.floordiv(S0, 32)))], {"s0": 32}, {}),
    "modulus": ([(ex.mod(S0, 8), ex.ZERO)], {"s0": 8}, {}),
    "two moduli": ([(ex.mod(S0, 8), ex.ZERO), (ex.mod(S0, 12), ex.ZERO)], {"s0": 24}, {}),
    "even": ([(HALF, ex.sub(S0, HALF))], {"s0": 2}, {}),
    "halves": ([(HALF, OTHER_HALF)], {"s0": 2}, {}),
    "odd": ([(HALF, ex.add(OTHER_HALF, 1))], {}, {}),
    "blocks of all": (
        [
            (ex.mod(ex.mul(S0, S1), 32), ex.ZERO),
            (ex.mul(ex.floordiv(S0, 32), ex.floordiv(ex.mul(S0, S1), BLOCKS)), S0),
        ],
        {"s0": 32},
        {},
    ),
    "blocks of a known number": (
        [
            (ex.mod(S0, ex.floordiv(S0, 128)), ex.ZERO),
            (ex.floordiv(S0, ex.floordiv(S0, 128)), ex.Int(128)),
        ],
        {"s0": 128},
        {},
    ),
    "blocks that leave a rest": (
        [(ex.floordiv(S0, ex.floordiv(S0, 128)), ex.Int(128))],
        {},
        {},
    ),
    "blocks of another number": (
        [
            (ex.mod(S0, ex.floordiv(S0, 128)), ex.ZERO),
            (ex.floordiv(S0, ex.floordiv(S0, 128)), ex.Int(129)),
        ],
        {},
        {},
    ),
    "blocks of a half": (
        [
            (HALF, OTHER_HALF),
            (ex.mul(8, ex.floordiv(ex.add(S0, 1), 16)), OTHER_HALF),
        ],
        {"s0": 16},
        {},
    ),
    "halves behind a part": (
        [
            (ex.floordiv(ex.add(ex.sub(S0, S1), 1), 2), S2),
            (ex.floordiv(ex.sub(S0, S1), 2), S2),
            (ex.floordiv(ex.add(ex.sub(S0, S1), 1), 2), ex.floordiv(ex.sub(S0, S1), 2)),
        ],
        {},
        {"s2": ex.floordiv(ex.add(ex.sub(S0, S1), 1), 2)},
    ),
    "a product alone": ([(ex.mod(ex.mul(S0, S1), 32), ex.ZERO)], {}, {}),
    "the same number": ([(ex.floordiv(S0, 128), S1)], {}, {"s1": ex.floordiv(S0, 128)}),
    "of itself": ([(ex.floordiv(S0, 128), S0)], {}, {}),
    "rounded down": (
        [(ex.mul(2, ex.floordiv(S0, 32)), S1)],
        {},
        {"s1": ex.mul(2, ex.floordiv(S0, 32))},
    ),
    "divisors of a quotient": (
        [
            (ex.mod(S0, 4), ex.ZERO),
            (ex.mul(7, ex.floordiv(ex.add(ex.floordiv(S0, 4), 6), 7)), ex.floordiv(S0, 4)),
        ],
        {"s0": 28},
        {},
    ),
    "one that is left": (
        [
            (ex.floordiv(S0, 4), ex.ONE),
            (ex.floordiv(ex.sub(S0, 1), 2), ex.add(1, ex.mul(2, ex.floordiv(S0, 4)))),
            (S0, ex.add(ex.mul(3, ex.floordiv(S0, 4)), 4)),
        ],
        {},
        {"s0": ex.Int(7)},
    ),
    "several that are left": ([(ex.floordiv(S0, 4), ex.ONE)], {}, {}),
    "one that is left of those that are divided": (
        [(ex.floordiv(S0, 4), ex.ONE), (ex.mod(12, ex.sub(S0, 4)), ex.ONE)],
        {},
        {"s0": ex.Int(4)},
    ),
    "all are left, one of them divides": (
        [(ex.floordiv(S0, 4), ex.ONE), (ex.mod(12, ex.sub(S0, 4)), ex.ZERO)],
        {},
        {},
    ),
    "one that is left of equal parts": (
        [(HALF, ex.Int(16)), (ex.sub(S0, HALF), ex.Int(16))],
        {},
        {"s0": ex.Int(32)},
    ),
    "parts that leave several": ([(ex.floordiv(ex.add(S0, 5), 6), ex.Int(16))], {}, {}),
    "parts of less than nothing": ([(ex.floordiv(ex.add(S0, -3), 2), ex.Int(-1))], {}, {}),
    "parts of another size": ([(S1, HALF), (S1, ex.sub(S0, HALF))], {"s0": 2}, {"s1": HALF}),
    "patches of a square": ([(ex.add(ex.power(ex.floordiv(S0, 8), 2), 1), ex.Int(17))], {}, {}),
    "patches that are all there are": (
        [(ex.power(ex.floordiv(S0, 8), 2), ex.Int(16)), (ex.mod(S0, 8), ex.ZERO)],
        {"s0": 8},
        {"s0": ex.Int(32)},
    ),
    "patches of no square": ([(ex.power(ex.floordiv(S0, 8), 2), ex.Int(17))], {}, {}),
    "a ring": (
        [(ex.floordiv(S0, 2), S1), (ex.floordiv(S1, 2), S2), (ex.floordiv(S2, 2), S0)],
        {},
        {"s1": OTHER_HALF},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_divisors_and_synonyms(name: str) -> None:
    equations, divisors, synonyms = CASES[name]
    found = equalities(equations)
    assert dict(found.divisors) == divisors
    assert dict(found.synonyms) == synonyms


@pytest.mark.parametrize(
    ("grown", "number", "count"),
    [
        (ex.add(ex.power(ex.floordiv(S0, 8), 2), 1), 17, 4),
        (ex.add(ex.mul(3, ex.floordiv(S0, 8)), ex.power(ex.floordiv(S0, 8), 3)), 14, 2),
        (ex.floordiv(S0, 2), 4, None),  # a pool's windows are seen to lie in s0 by it
        (ex.power(ex.floordiv(S0, 8), 2), 17, None),
        (ex.power(ex.floordiv(ex.add(S0, -50), 8), 2), 16, None),  # it may be -4, too
        (ex.power(ex.floordiv(ex.add(S0, -1), 8), 2), 16, 4),
        (ex.sub(ex.power(ex.floordiv(S0, 8), 2), ex.floordiv(S0, 8)), 12, None),
        (ex.add(ex.floordiv(S0, 8), ex.floordiv(S0, 4)), 12, None),
        (ex.mul(ex.floordiv(S0, 8), S1), 12, None),
    ],
)
def test_a_quotient_is_a_number_where_what_grows_with_it_is(
    grown: ex.Expr, number: int, count: int | None
) -> None:
    found = equalities([(grown, ex.Int(number))]).quotients
    assert list(found.values()) == ([] if count is None else [count])


class Patches(torch.nn.Module):
    """Patches of square images, one token more, and what is learned of 17 positions."""

    def __init__(self) -> None:
        super().__init__()
        self.project = torch.nn.Conv2d(3, 6, 8, 8)
        self.places = torch.nn.Parameter(torch.randn(1, 17, 6))

    def forward(self, images: Tensor, first: Tensor) -> Tensor:
        """images: (batch, 3, side, side); first: (1, 1, 6)."""
        patches = self.project(images).flatten(2).transpose(1, 2)
        return torch.cat([first.expand(images.shape[0], -1, -1), patches], 1) + self.places


def test_patches_of_which_positions_are_a_table_are_so_many() -> None:
    lowered = check(Patches(), torch.randn(2, 3, 33, 33), torch.randn(1, 1, 6))
    (launch,) = (step for step in lowered.plan.steps if isinstance(step, Launch))
    assert launch.outputs[0].shape == (S0, ex.Int(17), ex.Int(6))


@pytest.mark.parametrize("name", CASES)
def test_what_is_found_holds_wherever_the_equations_do(name: str) -> None:
    equations = CASES[name][0]
    found = equalities(equations)
    for values in itertools.product(range(1, 130), range(1, 20), range(1, 4)):
        sizes: dict[str, int] = dict(zip(("s0", "s1", "s2"), values, strict=True))
        try:
            holds = all(
                ex.evaluate(left, sizes) == ex.evaluate(right, sizes) for left, right in equations
            )
        except InvalidExpression:
            continue
        if holds:
            assert all(sizes[size] % divisor == 0 for size, divisor in found.divisors.items())
            for size, other in found.synonyms.items():
                assert sizes[size] == ex.evaluate(other, sizes)
            for quotient, count in found.quotients.items():
                assert ex.evaluate(quotient, sizes) == count
            for size, more in found.beyond.items():
                expected = sizes[more.than] + more.divisor * sizes[more.quotient]
                assert sizes[size] == expected


@pytest.mark.parametrize("divisor", [2, 3])
def test_what_is_behind_a_part_is_a_multiple_if_its_parts_are_as_long_as_another(
    divisor: int,
) -> None:
    rest = ex.sub(S0, S1)
    longer, shorter = ex.floordiv(ex.add(rest, divisor - 1), divisor), ex.floordiv(rest, divisor)
    assert equalities([(shorter, S2), (shorter, longer)]).beyond == {
        "s0": Beyond("s1", divisor, "s2")
    }
    assert equalities([(shorter, S2), (longer, shorter)]).beyond == {
        "s0": Beyond("s1", divisor, "s2")
    }
    assert not equalities([(shorter, S2)]).beyond
    assert not equalities([(shorter, longer)]).beyond
    assert not equalities([(shorter, S2), (shorter, longer), (ex.mod(S1, 8), ex.ZERO)]).beyond


def shapes(recorded_values: object) -> list[tuple[ex.Expr, ...]]:
    assert isinstance(recorded_values, tuple)
    return [kind.shape for kind in recorded_values if isinstance(kind, TensorType)]


def test_a_size_that_is_viewed_in_blocks_is_a_multiple_of_a_symbol() -> None:
    captured = record(lambda x: x.view(x.shape[0], -1, 32) + 1, torch.randn(5, 96)).captured
    (shape,) = shapes(captured.program.inputs)
    blocks, rows = (ex.symbol(name) for name in ("s1", "s0"))
    assert shape == (rows, ex.mul(32, blocks))
    (computed,) = captured.computed
    sizes = {binding.symbol: 96 for binding in captured.bindings}
    assert computed.value(sizes) == 3


def test_a_half_that_is_viewed_in_blocks_is_a_multiple_of_a_symbol() -> None:
    def function(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        return torch.unflatten(gate * up, -1, (-1, 128)).amax(-1)

    captured = record(function, torch.randn(5, 768)).captured
    assert shapes(captured.program.inputs) == [(S0, ex.mul(256, S1))]
    lowered = lower(captured.program, target_kind="cpu")
    assert all(isinstance(step, Launch) for step in lowered.plan.steps)
    assert len(lowered.kernels) == 1


def test_pairs_behind_a_part_of_a_row_are_as_many_as_their_angles() -> None:
    """Latent attention: the keys' pairs lie behind what is normed."""

    def rotated(x: Tensor, part: Tensor, cosine: Tensor) -> Tensor:
        latent, pairs = x[:, : part.shape[0]] * part, x[:, part.shape[0] :]
        turned = torch.stack((pairs[:, ::2] * cosine, pairs[:, 1::2] * cosine), -1)
        return torch.cat((latent, turned.flatten(-2)), -1)

    arguments = torch.randn(5, 22), torch.randn(10), torch.randn(5, 6)
    lowered = check(rotated, *arguments)
    assert [type(step) for step in lowered.plan.steps] == [Launch]
    captured = record(rotated, *arguments).captured
    assert {ex.to_text(shape[-1]) for shape in shapes(captured.program.inputs)} == {
        "(+ s0 (* 2 s2))",
        "s0",
        "s2",
    }


@pytest.mark.parametrize(
    ("relation", "is_ordered"),
    [
        (lambda one, two: one < two, True),
        (lambda one, two: two > one, True),
        (lambda one, two: not one >= two, True),
        (lambda one, two: one <= two and one != two, True),
        (lambda one, two: one <= two, False),
        (lambda one, two: one != two, False),
    ],
)
def test_orders_among_the_guards_are_read(
    relation: Callable[[int, int], bool], is_ordered: bool
) -> None:
    found: list[tuple[Any, Any]] = []

    def backend(module: torch.fx.GraphModule, inputs: Any) -> Any:
        found.extend(ShapeFacts(inputs).orders())
        return module.forward

    def function(x: Tensor, y: Tensor) -> Tensor:
        return x.sum() + y.sum() if relation(x.shape[0], y.shape[0]) else x.sum()

    compiled: Any = torch.compile(function, backend=backend, dynamic=True)
    compiled(torch.randn(5), torch.randn(7))
    assert len(found) == is_ordered
    assert not list(ShapeFacts([torch.ones(2)]).orders())


def test_what_is_left_of_a_row_behind_a_part_of_it_is_a_size_of_its_own() -> None:
    """A rotary embedding of a part of each head: what is joined behind it is there."""

    def scaled_part(x: Tensor, scale: Tensor) -> Tensor:
        part, rest = x[..., : scale.shape[0]], x[..., scale.shape[0] :]
        return torch.cat((part * scale, rest), -1)

    arguments = torch.randn(5, 22), torch.randn(10)
    lowered = check(scaled_part, *arguments)
    assert [type(step) for step in lowered.plan.steps] == [Launch]
    recorded = record(scaled_part, *arguments)
    captured = recorded.captured
    (rest,) = (symbol for symbol in captured.program.symbols if not symbol.user_name)
    assert rest.low == 1
    assert ex.add(S0, ex.symbol(rest.name)) in [
        shape[-1] for shape in shapes(captured.program.inputs)
    ]
    bound = [recorded.arguments[binding.position] for binding in captured.bindings]
    assert captured.sizes(bound)[rest.name] == 12


def test_a_size_that_is_longer_than_a_number_is_so_in_the_program() -> None:
    def scaled_part(x: Tensor) -> Tensor:
        return torch.cat((x[..., :8] * 2, x[..., 8:]), -1)

    arguments = (torch.randn(5, 22),)
    lowered = check(scaled_part, *arguments)
    assert [type(step) for step in lowered.plan.steps] == [Launch]
    program = record(scaled_part, *arguments).captured.program
    assert [symbol.low for symbol in program.symbols] == [2, 9]


def test_a_size_of_which_a_part_alone_is_read_stays_as_it_is() -> None:
    """A cache is as long as it is, however much of it is read."""
    captured = record(
        lambda cache, x: cache[:, : x.shape[1]] + x, torch.randn(5, 22), torch.randn(5, 10)
    ).captured
    assert not captured.computed


def test_a_size_that_another_tensor_repeats_is_no_symbol() -> None:
    captured = record(
        lambda x, y: x.view(x.shape[0], -1, 32) * y[..., None],
        torch.randn(5, 96),
        torch.randn(5, 3),
    ).captured
    assert len(captured.program.symbols) == 2


@pytest.mark.parametrize("rows", ["layer norm", "softmax"])
@pytest.mark.parametrize("parts", [2, 3, 6])
def test_equal_parts_of_an_argument_are_as_long_as_what_they_change(rows: str, parts: int) -> None:
    """Conditions of a transformer: `shift, scale = c.chunk(2, 1)`, and rows by these."""

    def function(x: Tensor, conditions: Tensor) -> Tensor:
        made = functional.layer_norm(x, (16,)) if rows == "layer norm" else x.softmax(-1)
        for part in conditions.chunk(parts, 1):
            made = made * part[:, None] + x
        return made

    recorded = record(function, torch.randn(3, 7, 16), torch.randn(3, parts * 16))
    length, of_all = (shape[-1] for shape in shapes(recorded.captured.program.inputs))
    assert of_all == ex.mul(parts, length)
    lowered = lower(recorded.captured.program, target_kind="cpu")
    assert all(isinstance(step, Launch) for step in lowered.plan.steps)
    assert len(lowered.kernels) == 1


def sevens(x: Tensor) -> Tensor:
    whole = functional.pad(x, (0, -x.shape[1] % 7))
    return whole.view(x.shape[0], whole.shape[1] // 7, 7) + 1


def eights(x: Tensor) -> Tensor:
    whole = functional.pad(x, (0, (8 - x.shape[1] % 8) % 8))
    return whole.view(x.shape[0], whole.shape[1] // 8, 8) + 1


@pytest.mark.parametrize(("blocks", "block"), [(sevens, 7), (eights, 8)])
def test_what_is_padded_to_whole_blocks_is_a_multiple_of_their_number(
    blocks: Callable[[Tensor], Tensor], block: int
) -> None:
    (shape,) = shapes(record(blocks, torch.randn(5, 45)).captured.program.nodes[-1].outputs)
    assert shape == (S0, ex.floordiv(ex.add(S1, block - 1), block), ex.Int(block))


@pytest.mark.parametrize(
    "is_padded", [lambda rest: rest > 0, lambda rest: rest >= 1, lambda rest: rest != 0]
)
def test_a_size_without_a_rest_is_a_multiple(is_padded: Callable[[int], bool]) -> None:
    def function(x: Tensor) -> Tensor:
        return x * 2 if is_padded((8 - x.shape[0] % 8) % 8) else x + 1

    captured = record(function, torch.randn(16, 3)).captured
    assert shapes(captured.program.inputs)[0][0] == ex.mul(8, ex.symbol("s0"))
    captured = record(function, torch.randn(15, 3)).captured
    assert shapes(captured.program.inputs)[0][0] == S0


def test_a_length_that_halves_bind_is_a_number() -> None:
    def sums_of_halves(x: Tensor) -> Tensor:
        """As an associative scan goes about it: the sums of pairs, then these pairs' sums."""
        if x.shape[0] < 2:
            return x
        odd = sums_of_halves(x[:-1:2] + x[1::2])
        even = odd + x[2::2] if x.shape[0] % 2 else odd[:-1] + x[2::2]
        even = torch.cat([x[:1], even])
        rest = [even[-1:]] if x.shape[0] % 2 else []
        pairs = torch.stack([even[: odd.shape[0]], odd], 1).flatten(0, 1)
        return torch.cat([pairs, *rest])

    for length in (7, 13, 16):
        recorded = record(sums_of_halves, torch.ones(length, 3))
        assert shapes(recorded.captured.program.inputs)[0][0] == ex.Int(length)


def test_sizes_that_no_guard_ties_stay_as_they_are() -> None:
    captured = record(lambda x: x[:, : x.shape[1] // 2] + 1, torch.randn(5, 96)).captured
    assert shapes(captured.program.inputs) == [(S0, S1)]
    assert not captured.computed


def test_half_a_batch_that_is_one_row_is_one_row_throughout() -> None:
    """Torch asks whether a half is 1, and from then on writes 1 for what it wrote as a half."""

    def preferred(chosen: Tensor) -> Tensor:
        half = chosen.shape[0] // 2
        better, worse = chosen[:half], chosen[half : 2 * half]
        return -functional.logsigmoid(0.1 * (better - worse)).mean()

    for rows in (2, 3):
        lowered = check(preferred, torch.randn(rows))
        assert [type(step) for step in lowered.plan.steps] == [Launch]
