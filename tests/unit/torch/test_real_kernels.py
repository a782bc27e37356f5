"""Models on generated, compiled kernels: awkward inputs give what eager gives."""

from __future__ import annotations

import copy
import mmap
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.torch.cases import CASES, Case
from tests.unit.torch.compiled_session import Compiled
from tests.unit.torch.conftest import Install
from torch.nn import functional
from torch.utils import _pytree as pytree

from nearhint.session import counters
from nearhint_torch.backend import nearhint
from nearhint_torch.runner import watch

Tensor = torch.Tensor

SIZES = ((3, 5), (33, 65), (1, 5), (5, 1), (1, 1), (0, 5), (5, 0))
TOLERANCE = {torch.bfloat16: 3e-2, torch.float16: 4e-3, torch.float32: 2e-5}
REFUSALS = (RuntimeError, IndexError, ValueError, ZeroDivisionError)
MAP_NORESERVE = 0x4000  # Linux's; the module mmap has no name for it
ATEN_ALONE = frozenset({"complex intermediates", "complex inputs", "attention"})
"""Cases that have nothing to lower; every other must be served by kernels."""

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compiled:
    return Compiled(tmp_path_factory.mktemp("kernels"))


def assert_close(left: Any, right: Any) -> None:
    if not isinstance(right, Tensor):
        assert left == right
        assert type(left) is type(right)
        return
    assert (left.dtype, left.shape) == (right.dtype, right.shape)
    wide = [dim for dim, size in enumerate(right.shape) if size > 1 and right.numel()]
    assert [left.stride(dim) for dim in wide] == [right.stride(dim) for dim in wide]
    limit = TOLERANCE.get(right.dtype, 0.0)
    torch.testing.assert_close(left, right, rtol=limit, atol=limit, equal_nan=True)


def shared(leaves: list[Any]) -> list[int]:
    """For each tensor the first that lies in the same storage."""
    tensors = [each for each in leaves if isinstance(each, Tensor) and each.numel()]
    places = [each.untyped_storage().data_ptr() for each in tensors]
    return [places.index(place) for place in places]


def test_hardswish_overflows_where_eager_does(session: Install, compiled: Compiled) -> None:
    fake = session(compiled.snapshot)
    largest, endless = torch.finfo(torch.float32).max, float("inf")
    x = torch.tensor([1e37, 1e38, -1e38, largest, -largest, endless, -endless, 2.5, -2.5])
    with torch.no_grad(), watch() as reports:
        found = torch.compile(functional.hardswish, backend=nearhint, dynamic=True)(x)
    assert_close(found, functional.hardswish(x))
    assert reports[-1].launches
    assert not fake.fallbacks


def test_what_is_added_is_scaled_before_it_is_multiplied_as_eager_s_is(
    session: Install, compiled: Compiled
) -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
        return torch.addcmul(x, y, z, value=2)

    session(compiled.snapshot)
    largest = torch.finfo(torch.float32).max
    x = torch.tensor([1.0, largest, largest, -largest, 0.0, 1.0])
    y = torch.tensor([2.0, largest, largest, largest, largest, 3.0])
    z = torch.tensor([0.5, 0.25, -0.25, 0.125, 0.0, -0.5])
    with torch.no_grad(), watch() as reports:
        found = torch.compile(function, backend=nearhint, dynamic=True)(x, y, z)
    assert_close(found, function(x, y, z))
    assert reports[-1].launches


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_step_of_adam_is_kernels_and_copies(
    dtype: torch.dtype, session: Install, compiled: Compiled
) -> None:
    """Scaled sums in place are traced as an op of Inductor's from torch 2.13 on."""

    def step(weight: Tensor, slope: Tensor, mean: Tensor, square: Tensor) -> None:
        mean.lerp_(slope, 0.1)
        square.mul_(0.9).addcmul_(slope, slope, value=0.1)
        weight.addcdiv_(mean, square.sqrt().add_(1e-3), value=-0.01)

    fake = session(compiled.snapshot)
    run = torch.compile(step, backend=nearhint, dynamic=True)
    for rows, columns in ((7, 5), (33, 65)):
        given = [torch.rand(rows, columns, dtype=dtype) for _ in range(4)]
        expected = [each.clone() for each in given]
        with torch.no_grad(), watch() as reports:
            run(*given)
            step(*expected)
        for one, other in zip(given, expected, strict=True):
            assert_close(one, other)
        assert reports[0].tiers[0] == 0
    (handle,) = fake.handles
    assert not [node.op for node in handle.program.nodes if node.op.startswith("prims.")]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("exponent", [0.5, -0.5])
def test_roots_as_powers_are_eager_s_where_they_are_special(
    exponent: float, dtype: torch.dtype, session: Install, compiled: Compiled
) -> None:
    def function(x: Tensor) -> Tensor:
        return x**exponent

    session(compiled.snapshot)
    x = torch.tensor([-torch.inf, -0.0, 0.0, torch.inf, -1.0, 4.0], dtype=dtype)
    with torch.no_grad(), watch() as reports:
        found = torch.compile(function, backend=nearhint, dynamic=True)(x)
    expected = function(x)
    torch.testing.assert_close(found, expected, equal_nan=True)
    is_number = ~expected.isnan()
    assert torch.equal(found.signbit()[is_number], expected.signbit()[is_number])
    assert reports[-1].launches


@pytest.mark.parametrize("divisor", [None, 0.3, torch.tensor(0.3)], ids=["rows", "number", "0-d"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_quotients_of_low_precision_are_rounded_before_they_are_cut_as_eager_s_are(
    dtype: torch.dtype, divisor: float | Tensor | None, session: Install, compiled: Compiled
) -> None:
    def function(x: Tensor, y: float | Tensor) -> Tensor:
        return torch.div(x, y, rounding_mode="trunc")

    session(compiled.snapshot)
    x = torch.arange(-40, 40, dtype=dtype)
    y = torch.full_like(x, 0.3) if divisor is None else divisor
    with torch.no_grad(), watch() as reports:
        found = torch.compile(function, backend=nearhint, dynamic=True)(x, y)
    torch.testing.assert_close(found, function(x, y), rtol=0, atol=0)
    assert reports[-1].launches


TURNED: dict[str, Callable[[Tensor], Tensor]] = {
    "turned": lambda x: x.flip(1),
    "summed up": lambda x: x.cumsum(1),
    "one element": lambda x: x[:, :1].expand(-1, x.shape[1]),
    "joined": lambda x: torch.cat([x[:, 1:], x[:, :1]], 1),
}


@pytest.mark.parametrize("name", TURNED)
def test_an_element_of_a_row_that_is_not_there_is_refused_whatever_the_row_is_of(
    name: str, session: Install, compiled: Compiled
) -> None:
    """Of a row that no place in memory stands for, a walk would find the element, or none."""

    def function(x: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        row = TURNED[name](x)
        return row.gather(1, places) * 2, row.sum(1)

    session(compiled.snapshot)
    call = torch.compile(function, backend=nearhint, dynamic=True)
    x, places = torch.randn(5, 7), torch.arange(5)[:, None]
    x[0] = -0.0
    with torch.no_grad(), watch() as reports:
        for got, expected in zip(call(x, places), function(x, places), strict=True):
            torch.testing.assert_close(got, expected)
            assert torch.equal(got.signbit(), expected.signbit())
        for wrong in (7, -1):
            places[3] = wrong
            with pytest.raises(RuntimeError, match=f"index {wrong} is out of bounds"):
                call(x, places)
    assert reports[0].launches


REFUSED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "booleans subtracted": lambda x, mask: x - mask,
    "subtracted from booleans": lambda x, mask: 1 - mask,
    "a boolean subtracted": lambda x, mask: x - True,
    "relu of booleans": lambda x, mask: mask.relu(),
    "argmax of booleans": lambda x, mask: mask.argmax(1),
    "argmin of booleans": lambda x, mask: mask.argmin(),
    "a mask's number": lambda x, mask: x.half().masked_fill(mask, -1e9).softmax(-1),
    "a bound": lambda x, mask: x.half().clamp(-1e9, 1e9),
    "a filling": lambda x, mask: torch.full_like(x, 1e39, dtype=torch.bfloat16) + 1,
    "a filling of an integer": lambda x, mask: torch.full_like(x, -(10**9), dtype=torch.half) + 1,
    "a mask's integer": lambda x, mask: x.half().masked_fill(mask, -(10**9)).softmax(-1),
    "a lower bound": lambda x, mask: torch.clamp_min(x.half(), -1e9) + 1,
    "an upper bound": lambda x, mask: torch.clamp_max(x.half(), 10**9) + 1,
    "what pads": lambda x, mask: functional.pad(x.half(), (1, 2), value=-1e9).amax(-1),
    "a factor of terms": lambda x, mask: torch.add(x.half(), x.half(), alpha=1e9) * 0,
    "a factor of differences": lambda x, mask: torch.sub(x.half(), x.half(), alpha=1e9) * 0,
    "an exponent": lambda x, mask: x.half().abs() ** 1e5,
    "bounds of an activation": lambda x, mask: functional.hardtanh(x.half(), -1e9, 1e9) + 1,
    "what is below a threshold": lambda x, mask: functional.threshold(x.half(), 0.0, -1e9) + 1,
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused_by_eager_s_error(
    name: str, session: Install, compiled: Compiled
) -> None:
    session(compiled.snapshot)
    function, x = REFUSED[name], torch.randn(5, 7)
    with pytest.raises(RuntimeError) as expected:
        function(x, x > 0)
    run = torch.compile(function, backend=nearhint, dynamic=True)
    with torch.no_grad(), pytest.raises(RuntimeError) as found:
        run(x, x > 0)
    assert str(found.value) == str(expected.value)


def test_what_eager_makes_infinite_is_infinite(session: Install, compiled: Compiled) -> None:
    """A number beyond a half float's range is not cast to a wider one, as what is computed is."""

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return 1e9**x, torch.xlogy(x, 1e9)

    session(compiled.snapshot)
    x = torch.tensor([-0.5, 0.0, 0.25, 1.0], dtype=torch.half)
    with torch.no_grad():
        found = torch.compile(function, backend=nearhint, dynamic=True)(x)
    for got, expected in zip(found, function(x), strict=True):
        torch.testing.assert_close(got, expected, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("special", [[torch.inf], [-torch.inf], [torch.inf] * 2])
def test_moments_of_a_row_with_an_infinity_are_the_same_wherever_it_is(
    special: list[float], dtype: torch.dtype, session: Install, compiled: Compiled
) -> None:
    """The mean is what it is alone; beside a variance, eager's is NaN but for some last places."""

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return *torch.var_mean(x, -1), x.std(-1), x.mean(-1), functional.layer_norm(x, x.shape[-1:])

    session(compiled.snapshot)
    call = torch.compile(function, backend=nearhint, dynamic=True)
    for length in (5, 40, 1500):
        x = torch.randn(4, length).to(dtype)
        for row, place in enumerate((0, 1, length // 2, length - len(special))):
            x[row, place : place + len(special)] = torch.tensor(special)
        with torch.no_grad(), watch() as reports:
            variance, mean, deviation, alone, normed = call(x)
        assert reports[-1].launches
        assert torch.equal(mean, alone)
        assert torch.equal(mean, torch.full_like(mean, special[0]))
        assert all(each.isnan().all() for each in (variance, deviation, normed))


def test_memory_that_torch_fills_is_filled(session: Install, compiled: Compiled) -> None:
    def function(x: Tensor) -> Tensor:
        made = x.new_empty(x.shape)
        made[0] = x[-1]
        return made * 2

    session(compiled.snapshot)
    x = torch.randn(5, 7)
    torch.use_deterministic_algorithms(True)
    try:
        with torch.no_grad():
            found = torch.compile(function, backend=nearhint, dynamic=True)(x)
        assert_close(found, function(x))
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("eps", [0.1, 0.5, 0.6])
def test_a_logit_is_eager_s_also_where_its_bounds_cross(
    eps: float, session: Install, compiled: Compiled
) -> None:
    def function(x: Tensor) -> Tensor:
        return torch.logit(x * 2, eps)

    session(compiled.snapshot)
    x = torch.tensor([-1.0, 0.0, 0.1, 0.2, 0.25, 0.275, 0.3, 0.4, 0.5, 2.0, float("nan")])
    with torch.no_grad(), watch() as reports:
        found = torch.compile(function, backend=nearhint, dynamic=True)(x)
    torch.testing.assert_close(found, function(x), equal_nan=True)
    assert reports[-1].launches


def test_a_sum_of_a_single_negative_zero_is_eager_s_zero(
    session: Install, compiled: Compiled
) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        column = x[:, None]
        return column.sum(1), column.mean(1), column.nansum(1), column.cumsum(1), column.prod(1)

    session(compiled.snapshot)
    x = torch.tensor([-0.0, 0.0, -1.5])
    with torch.no_grad(), watch() as reports:
        found = torch.compile(function, backend=nearhint, dynamic=True)(x)
    for one, other in zip(found, function(x), strict=True):
        assert_close(one, other)
        assert torch.equal(one.signbit(), other.signbit())
    assert reports[-1].launches


@pytest.mark.filterwarnings("ignore:var")  # eager's, of a single element
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_kernels_give_what_eager_gives(case: Case, session: Install, compiled: Compiled) -> None:
    fake = session(compiled.snapshot)
    failed = counters.seen().get("original_program_failed", 0)
    run = torch.compile(case.function, backend=nearhint, dynamic=True)
    launches = 0
    for sizes in SIZES:
        torch.manual_seed(sum(sizes))
        try:
            arguments = case.arguments(*sizes)
            twin = copy.deepcopy(arguments)
            torch.manual_seed(1)
            expected = case.function(*arguments)
        except REFUSALS:
            continue  # eager has no answer at these sizes
        torch.manual_seed(1)
        with torch.no_grad(), watch() as reports:
            got = run(*twin)
        left, right = pytree.tree_leaves((got, twin)), pytree.tree_leaves((expected, arguments))
        for one, other in zip(left, right, strict=True):
            assert_close(one, other)
        assert shared(left) == shared(right)
        assert all(report.tiers[0] == 0 for report in reports)
        launches += sum(report.tiers[2] for report in reports)
    assert not fake.fallbacks
    assert counters.seen().get("original_program_failed", 0) == failed
    assert bool(launches) == (case.name not in ATEN_ALONE)


def embedded(words: Tensor, places: Tensor) -> Tensor:
    return functional.embedding(places, words).relu().sum(-1)


def looked_up(cache: Tensor, places: Tensor) -> Tensor:
    return cache[places, places % 3] * 2


@pytest.mark.parametrize(
    ("function", "shape", "wrong"),
    [(embedded, (40, 24), 40), (embedded, (40, 24), -1), (looked_up, (40, 3), -41)],
)
def test_an_index_out_of_range_is_eager_s_error_and_reads_nothing_beyond(
    function: Callable[..., Tensor],
    shape: tuple[int, ...],
    wrong: int,
    session: Install,
    compiled: Compiled,
) -> None:
    fake = session(compiled.snapshot)
    table, places = torch.randn(shape), torch.arange(33)
    run = torch.compile(function, backend=nearhint, dynamic=True)
    with torch.no_grad(), watch() as reports:
        assert_close(run(table, places), function(table, places))
        assert reports[-1].tiers[2] == 1
        assert not fake.fallbacks
        places[17] = wrong
        with pytest.raises(IndexError, match=r"out of (range|bounds)"):
            run(table, places)
        assert fake.fallbacks == ["place_outside"]
        places[17] = 3
        assert_close(run(table, places), function(table, places))
    assert fake.fallbacks == ["place_outside"]


@pytest.mark.parametrize(("function", "dimension"), [(embedded, 0), (looked_up, 0), (looked_up, 1)])
def test_an_index_into_a_table_without_elements_is_eager_s_error(
    function: Callable[..., Tensor], dimension: int, session: Install, compiled: Compiled
) -> None:
    """Of an unbacked size one capture serves all, and there is no memory where there is none."""
    fake = session(compiled.snapshot)
    places = torch.arange(3)
    run = torch.compile(function, backend=nearhint, dynamic=True)
    with torch.no_grad(), watch() as reports:
        for size in (9, 0, 8):
            table = torch.randn([size if dim == dimension else 7 for dim in range(2)])
            torch._dynamo.decorators.mark_unbacked(table, dimension)
            if size:
                assert_close(run(table, places), function(table, places))
                assert reports[-1].tiers[2] == 1
                continue
            with pytest.raises((IndexError, RuntimeError), match=r"index"):
                run(table, places)
    assert not fake.fallbacks


def test_elements_beyond_32_bits_are_found(session: Install, compiled: Compiled) -> None:
    """Three rows, 2^31 elements apart from first to last, in memory that is never filled."""
    row = 2**30
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    storage = torch.frombuffer(mmap.mmap(-1, (2 * row + 64) * 4, flags), dtype=torch.float32)
    x = storage.as_strided((3, 64), (row, 1))
    x.copy_(torch.randn(3, 64))
    fake = session(compiled.snapshot)

    def function(x: Tensor) -> Tensor:
        return (x * 2 + 1).softmax(-1)

    run = torch.compile(function, backend=nearhint, dynamic=True)
    with torch.no_grad(), watch() as reports:
        assert_close(run(x), function(x))
    assert [report.tiers for report in reports] == [(0, 0, 1)]
    assert not fake.fallbacks


def test_one_capture_of_an_unbacked_size_serves_none_one_and_many_rows(
    session: Install, compiled: Compiled
) -> None:
    fake = session(compiled.snapshot)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x * 2 + 1, x.sum(0), x.softmax(-1), torch.cat([x, -x]).relu()

    run = torch.compile(function, backend=nearhint)
    for rows in (5, 0, 1, 2, 33):
        x = torch.randn(rows, 8)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        with torch.no_grad(), watch() as reports:
            for one, other in zip(run(x), function(x), strict=True):
                assert_close(one, other)
        assert rows == 0 or [report.tiers[0] for report in reports] == [0]
    assert len(fake.handles) == 1
    assert [symbol.low for symbol in fake.handles[0].program.symbols] == [0]
    assert not fake.fallbacks


def test_padding_of_which_there_is_none_is_a_size_like_others(
    session: Install, compiled: Compiled
) -> None:
    """What Swin asks of each place of a window: is it in the image, or in its padding?"""
    fake = session(compiled.snapshot)

    def function(x: Tensor) -> Tensor:
        padding = -x.shape[0] % 7
        places = torch.arange(x.shape[0] + padding)
        return torch.where(places >= x.shape[0], -1.0, 0.0) + torch.where(places >= padding, 1, 2)

    run = torch.compile(function, backend=nearhint, dynamic=True)
    for rows in (9, 14, 13, 21):
        x = torch.randn(rows)
        with torch.no_grad(), watch() as reports:
            assert_close(run(x), function(x))
        assert [report.tiers for report in reports] == [(0, 0, 1)]
    assert len(fake.handles) == 1
    assert not fake.fallbacks
