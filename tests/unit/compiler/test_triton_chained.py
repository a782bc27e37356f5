"""Columns scanned in chains of chunks, brought together apart, and stored where places are anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.compiler import triton_numerics as numerics
from tests.unit.compiler.kernels import TARGET, kernel_of
from tests.unit.compiler.triton_numerics import Case, Results

from nearhint_compiler.codegen import generate
from nearhint_compiler.errors import InvalidSchedule
from nearhint_compiler.ir.nodes import Kernel
from nearhint_compiler.ir.text import parse_kernel
from nearhint_compiler.schedule import candidates
from nearhint_compiler.schedule.schedule import parse_schedule
from nearhint_daemon.workers import cubin
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CudaLaunch

pytestmark = numerics.RUNS_LONG

pytest.importorskip("triton")
pytestmark = pytest.mark.timeout(600)  # all cases are interpreted in one go

PROMISES = "index=32 aligned=1 divisible=0"


def chains(kernel: str, *dims: tuple[int, ...], special: bool = False) -> list[Case]:
    """Runs of one row and of some, one run a program and several, 64-bit indices, and several
    chunks together."""
    texts = (
        f"cuda.chained x=4 r=2 warps=1 {PROMISES} unroll=3 back=2",
        f"cuda.chained x=2 r=1 warps=1 {PROMISES} unroll=4 back=3",
        f"cuda.chained x=8 r=4 warps=4 {PROMISES.replace('32', '64')} unroll=1 back=1",
        f"cuda.chained x=8 r=2 warps=1 {PROMISES} unroll=1 back=2 together=4",
        f"cuda.chained x=4 r=1 warps=1 {PROMISES.replace('32', '64')} unroll=2 back=3 together=2",
        f"cuda.chained x=2 r=2 warps=1 {PROMISES} unroll=9 back=2",
        f"cuda.chained x=2 r=1 warps=1 {PROMISES} unroll=24 back=2",
    )
    return [Case(kernel, text, each, special) for each in dims for text in texts]


def chains_of_rows(
    kernel: str, *dims: tuple[int, ...], r: int = 16, words: str = "", special: bool = False
) -> list[Case]:
    """Chunks of one tile and of several, of a row and of some, 64-bit indices, and several chunks
    together; in whole words if `words` says so."""
    wide = PROMISES.replace("32", "64")
    texts = (
        f"cuda.chained x=1 r={r} warps=1 {PROMISES} back=2 tiles=1{words}",
        f"cuda.chained x=2 r={r} warps=4 {PROMISES} back=3 tiles=3{words}",
        f"cuda.chained x=4 r={2 * r} warps=1 {wide} back=1 tiles=1{words}",
        f"cuda.chained x=1 r={r} warps=1 {wide} back=2 together=2 tiles=2{words}",
    )
    return [Case(kernel, text, each, special) for each in dims for text in texts]


def chains_of_words(
    kernel: str, *dims: tuple[int, ...], r: int = 32, special: bool = False
) -> list[Case]:
    return chains_of_rows(kernel, *dims, r=r, words=" words=1", special=special)


def apart(kernel: str, *dims: tuple[int, ...], special: bool = False) -> list[Case]:
    """Totals brought together by programs of few columns, more and fewer of them than chunks."""
    texts = (
        f"cuda.split x=8 r=2 splits=7 warps=1 {PROMISES} apart=2",
        f"cuda.split x=4 r=4 splits=3 warps=1 {PROMISES.replace('32', '64')} apart=1",
        f"cuda.split x=4 r=2 splits=8 warps=1 {PROMISES} programs=9 apart=4",
    )
    return [Case(kernel, text, each, special) for each in dims for text in texts]


def anew(kernel: str, *dims: tuple[int, ...], special: bool = False) -> list[Case]:
    """Columns in registers whose places are computed again for what is stored."""
    narrow = f"cuda.persistent x=4 r=64 warps=1 {PROMISES} anew=1"
    wide = f"cuda.persistent x=8 r=64 warps=4 {PROMISES.replace('32', '64')} registers=64 anew=1"
    turned = f"cuda.persistent x=8 r=16 warps=2 {PROMISES} spread=1 pieces=4 anew=1"
    texts = (narrow, f"{narrow} spread=1", wide, turned)
    return [
        Case(kernel, text, each, special)
        for each in dims
        for text in (texts[:-1] if "scans" in kernel else texts)
    ]


LENGTHS = (1, 2, 3, 4, 5, 7, 31, 32, 33, 35, 64, 97, 128, 131, 259)
"""Lengths about those of words, tiles and chunks."""
CASES = [
    *anew("middle_softmax_bf16", (3, 5, 37), (1, 7, 1), (2, 3, 64)),
    *anew("middle_softmax_bf16", (2, 3, 40), special=True),
    *anew("standardised_columns_f32", (5, 37)),
    *anew("weighted_middle_scans_bf16", (3, 5, 31)),
    *apart("column_cumsum_f32", (5, 37), (11, 3)),
    *apart("column_cumprod_i64", (5, 29)),
    *apart("weighted_middle_scans_bf16", (3, 5, 31)),
    *apart("standardised_columns_f32", (9, 37), (3, 2)),
    *apart("standardised_columns_f32", (3, 40), special=True),
    *apart("column_sum_f32", (37, 11)),
    *apart("column_argmin_bf16", (9, 40)),
    *apart("normalised_cumsum_bf16", (5, 43)),
    *chains("column_cumsum_f32", (5, 37), (3, 6), (1, 1), (9, 2)),
    *chains("column_cumsum_f32", (3, 40), special=True),
    *chains("column_cumprod_i64", (7, 29)),
    *chains("weighted_middle_scans_bf16", (3, 5, 31)),
    *chains("row_cumprod_f64", (3, 41)),
    *chains_of_rows("row_cumsum_f32", (5, 261), (1, 1), (3, 16), (2, 48)),
    *chains_of_rows("row_cumsum_f32", (3, 64), special=True),
    *chains_of_rows("row_cumprod_f64", (3, 141)),
    *chains_of_rows("row_logcumsumexp_f32", (3, 141)),
    *chains_of_rows("row_logcumsumexp_f32", (3, 64), special=True),
    *chains_of_rows("column_cumprod_i64", (5, 29)),
    *chains_of_rows("row_cumsum_bf16", (3, 205)),
    *chains_of_rows("weighted_middle_scans_bf16", (3, 5, 31)),
    *chains_of_words("row_cumsum_f32", *((5, length) for length in LENGTHS)),
    *chains_of_words("row_cumsum_f32", (3, 133), special=True),
    *chains_of_words("row_cumprod_f64", (3, 9), (3, 61), (4, 1), r=8),
    *chains_of_words("row_cumsum_bf16", (1, 3), (3, 517), (2, 1031), (9, 129), r=128),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_source_agrees_with_the_interpreter_of_the_ir(case: Case, results: Results) -> None:
    numerics.assert_agrees(case, results)


def test_no_chain_of_sums_is_longer_than_a_segment() -> None:
    text = f"cuda.chained x=64 r=8 warps=4 {PROMISES} registers=168 unroll=24 back=8"
    source = generate(kernel_of("column_cumsum_f32"), parse_schedule(text), TARGET).source
    along = [line.strip() for line in source.splitlines() if line.strip().startswith("along1_")]
    first = [line.partition(" = ")[0] for line in along if "_combine_sum(" not in line]
    assert first == ["along1_0", "along1_8", "along1_16"]
    assert len(along) == 24
    starts = [line.strip() for line in source.splitlines() if "_combine_sum(start1, along1" in line]
    assert [line for line in starts if line.startswith("start1 =")] == [
        "start1 = _combine_sum(start1, along1_7)",
        "start1 = _combine_sum(start1, along1_15)",
    ]


CHAINED = f"cuda.chained x=128 r=8 warps=8 {PROMISES} unroll=16 back=8"


@pytest.mark.parametrize(("name", "words"), [("column_cumsum_f32", 1), ("column_cumprod_i64", 2)])
def test_a_program_has_a_chunk_and_leaves_a_word_for_each_column_or_two_of_wide_values(
    name: str, words: int
) -> None:
    launch = generate(kernel_of(name), parse_schedule(CHAINED), TARGET).launch
    assert isinstance(launch, CudaLaunch)
    assert launch.stages == 2  # the first zeroes words
    sizes = {"k0": 300, "k1": 1000}
    chunks, blocks = 8, 3
    assert [ex.evaluate(size, sizes) for size in launch.grid] == [chunks * blocks, 1, 1]
    length = -(-(300 * chunks + 1) // 16) * 16
    assert ex.evaluate(launch.workspace_bytes, sizes) == 8 * words * length


def test_chunks_together_leave_words_of_their_own() -> None:
    schedule = parse_schedule(f"{CHAINED} together=3")
    launch = generate(kernel_of("column_cumsum_f32"), schedule, TARGET).launch
    assert isinstance(launch, CudaLaunch)
    sizes = {"k0": 97, "k1": 1000}
    # Eight chunks, of which the last two are no whole team.
    length = -(-(97 * (8 + 2) + 1) // 16) * 16
    assert ex.evaluate(launch.workspace_bytes, sizes) == 8 * length


ROWS = f"cuda.chained x=1 r=4096 warps=8 {PROMISES} registers=64 back=4 tiles={{}}{{}}"


@pytest.mark.parametrize("words", ["", " words=1"])
@pytest.mark.parametrize("tiles", [1, 2])
def test_chunks_of_rows_are_loaded_once_and_stored_once(tiles: int, words: str) -> None:
    schedule = parse_schedule(ROWS.format(tiles, words))
    made = generate(kernel_of("row_cumsum_f32"), schedule, TARGET)
    assert isinstance(made.launch, CudaLaunch)
    zeroing, rest = made.source.split("\n    else:\n")
    assert "tl.load(" not in zeroing
    parts = tiles + (words != "")  # and the edges
    assert rest.count("tl.load(a0") == rest.count("tl.store(a1") == parts
    # Each word of a chunk, and the ticket: what was there is written over.
    assert zeroing.count("tl.store(w0") == 2
    sizes = {"k0": 77, "k1": 110_041}
    chunks = -(-110_041 // (4096 * tiles))
    assert [ex.evaluate(size, sizes) for size in made.launch.grid] == [77 * chunks, 1, 1]
    assert ex.evaluate(made.launch.workspace_bytes, sizes) == 8 * -(-(77 * chunks + 1) // 16) * 16


@pytest.mark.parametrize("name", ["row_cumsum_f32", "row_cumsum_bf16"])
def test_chunks_of_rows_move_vectors_and_fit_registers(name: str, tmp_path: Path) -> None:
    made = generate(kernel_of(name), parse_schedule(ROWS.format(1, " words=1")), TARGET)
    built = cubin.compile_cubin(made, TARGET, scratch=tmp_path)
    assert "0 bytes spill stores" in built.log


@pytest.mark.parametrize(
    "more",
    [" unroll=2 tiles=2", " words=1", " tiles=17", " tiles=1 group=4", " tiles=1 words=1 r1=64"],
)
def test_chunks_that_cannot_be_are_refused(more: str) -> None:
    text = f"cuda.chained x=1 r=256 warps=4 {PROMISES} back=4{more}"
    with pytest.raises(InvalidSchedule):
        generate(kernel_of("row_cumsum_f32"), parse_schedule(text), TARGET)


@pytest.mark.parametrize("name", ["column_cumsum_f32", "column_cumprod_i64"])
def test_what_serves_all_sizes_keeps_totals_of_few_columns_in_registers(
    name: str, tmp_path: Path
) -> None:
    kernel = kernel_of(name)
    plain = candidates(kernel, TARGET, {"k0": 97, "k1": 100_003})[-1]
    assert (plain["index"], plain["aligned"], plain["divisible"]) == (64, 0, 0)
    built = cubin.compile_cubin(generate(kernel, plain, TARGET), TARGET, scratch=tmp_path)
    assert built.binary


@pytest.mark.parametrize("schedule", [CHAINED, CHAINED.replace("x=128 r=8", "x=64 r=16")])
def test_chunks_and_their_places_fit_registers(schedule: str, tmp_path: Path) -> None:
    text = schedule.replace("divisible=0", "divisible=1 registers=128")
    made = generate(kernel_of("column_cumsum_f32"), parse_schedule(text), TARGET)
    log = cubin.compile_cubin(made, TARGET, scratch=tmp_path).log
    assert "0 bytes spill stores" in log


TWO_SUMS = """
(kernel (symbols k0 k1 k2) (pointwise k0 k1) (reduction k2)
  (params (in f32) (out f32) (out f32))
  (body
    (load 0 (+ (* k1 k2 p0) p1 (* k1 r0)))
    (mul f32 0 0)
    (scan sum f32 0)
    (scan sum f32 1)
    (store 1 (+ (* k1 k2 p0) p1 (* k1 r0)) 2)
    (store 2 (+ (* k1 k2 p0) p1 (* k1 r0)) 3)))
"""


@pytest.mark.parametrize(
    "kernel",
    [parse_kernel(TWO_SUMS), kernel_of("weighted_middle_scans_bf16")],
    ids=["two_sums", "sum_and_product"],
)
def test_columns_of_several_scans_fit_registers(kernel: Kernel, tmp_path: Path) -> None:
    """Each scan has values and totals of its own: of two scans a thread has fewer rows."""
    offered = candidates(kernel, TARGET, {"k0": 33, "k1": 128, "k2": 65_535})
    assert offered[0].family == "cuda.split"
    for family in ("cuda.split", "cuda.chained"):
        first = next(each for each in offered if each.family == family)
        made = generate(kernel, first, TARGET)
        cubin.compile_cubin(made, TARGET, scratch=tmp_path)  # refuses what spills


@pytest.mark.parametrize(
    "name", ["column_sum_f32", "normalised_cumsum_bf16", "standardised_columns_f32"]
)
def test_nothing_but_scans_of_their_own_is_chained(name: str) -> None:
    with pytest.raises(InvalidSchedule, match="scans"):
        generate(kernel_of(name), parse_schedule(CHAINED), TARGET)
