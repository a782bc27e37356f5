"""What surrounds the loops of a C kernel: tasks, their odometer, threads and the entry.

A kernel is cut into `total` tasks in a fixed order; a thread takes a run of neighbouring ones.
With one thread the OpenMP runtime is not called at all. Its entry points are declared by hand, so
that the compiler needs neither -fopenmp nor the runtime's header, and the shared object names no
library: the launcher loads it beside the runtime that the process already has.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from nearhint_compiler.codegen.c.index import to_c
from nearhint_compiler.codegen.c.text import Writer
from nearhint_compiler.ir import nodes as ir
from nearhint_rules import expr as ex
from nearhint_rules.artifact import CHECKED_ENTRY
from nearhint_rules.expr import Expr

ENTRY = "nearhint_kernel"

OPENMP = """
extern void GOMP_parallel(void (*function)(void *), void *data, unsigned threads, unsigned flags);
extern int omp_get_thread_num(void);
extern int omp_get_num_threads(void);
"""

_SHARE = """
struct call {
    void *const *parameters;
    const int64_t *dims;
    int64_t total;
};

static void share(void *data)
{
    const struct call *call = data;
    const int64_t me = omp_get_thread_num(), threads = omp_get_num_threads();
    run(call->parameters, call->dims, call->total * me / threads, call->total * (me + 1) / threads);
}
"""

NAMED = """
static inline int64_t named(int64_t place, int64_t size, int32_t *outside)
{
    if ((uint64_t)place < (uint64_t)size)
        return place;
    __atomic_store_n(outside, 1, __ATOMIC_RELAXED);
    return place < 0 ? 0 : size - 1;
}
"""
"""The place that data names, or the nearest that there is; then the call says so."""

RUN = "(void *const *parameters, const int64_t *dims, int64_t from, int64_t to)"


def is_checked(kernel: ir.Kernel) -> bool:
    """Whether data names places: the call says whether there are any that there are not."""
    return any(isinstance(node, ir.Placed) for node in kernel.body)


def _doubtful_sizes(kernel: ir.Kernel) -> list[Expr]:
    """How many places there are, where that may be none."""
    sizes = dict.fromkeys(node.size for node in kernel.body if isinstance(node, ir.Placed))
    ranges = dict.fromkeys(kernel.symbols, (1, None))
    lows = [(size, ex.bounds(size, ranges)[0]) for size in sizes]
    return [size for size, low in lows if low is None or low < 1]


def write_entry(
    writer: Writer, kernel: ir.Kernel, total: Expr, *, shared: Expr | None = None
) -> None:
    """The entry, for a `run` that does the tasks in [from, to) of `total`.

    Where `shared` are fewer than threads, a `cooperate` does them instead. Where it `is_checked`, a
    flag comes after the parameters; where there are no places at all, nothing is read.
    """
    writer.line(_SHARE)
    checked = is_checked(kernel)
    head = f"int32_t {CHECKED_ENTRY}" if checked else f"void {ENTRY}"
    given = "given" if checked else "parameters"
    writer.line(f"{head}(void *const *{given}, const int64_t *dims, int32_t threads)")
    with writer.block():
        if checked:
            pointers = "".join(f"given[{place}], " for place in range(len(kernel.params)))
            writer.line("int32_t outside = 0;")
            writer.line(f"void *const parameters[] = {{{pointers}&outside}};")
        doubtful = _doubtful_sizes(kernel)
        used = ex.symbols_of(total, *doubtful, *([] if shared is None else [shared]))
        for place, name in enumerate(kernel.symbols):
            if name in used:
                writer.line(f"const int64_t {name} = dims[{place}];")
        for size in doubtful:
            writer.line(f"if ({to_c(size)} < 1)")
            writer.line("    return 1;")
        writer.line(f"struct call call = {{parameters, dims, {to_c(total)}}};")
        if shared is not None:
            few = "call.total" if shared == total else to_c(shared)
            writer.line(f"if (threads > 1 && {few} < threads)")
            writer.line("    cooperate(parameters, dims, threads);")
        writer.line(f"{'' if shared is None else 'else '}if (threads > 1 && call.total > 1)")
        writer.line("    GOMP_parallel(share, &call, (unsigned)threads, 0);")
        writer.line("else")
        writer.line("    run(parameters, dims, 0, call.total);")
        if checked:
            writer.line("return outside;")


@contextmanager
def tasks(
    writer: Writer, counters: Sequence[tuple[str, str]], *, step: str = ""
) -> Generator[None]:
    """A loop over tasks [from, to); `counters` are (C variable, its extent), slowest first.

    With `step`, a variable that the loop's body sets, it goes over so many tasks at a time, which
    are neighbours along the last counter.
    """
    rest = "from"
    declared: list[str] = []
    for name, extent in reversed(counters):
        is_first = name == counters[0][0]
        declared.append(f"int64_t {name} = {rest if is_first else f'{rest} % {extent}'};")
        rest = f"{rest} / {extent}" if rest == "from" else f"({rest}) / {extent}"
    for line in reversed(declared):
        writer.line(line)
    further = f"task += {step}" if step else "task++"
    with writer.block(f"for (int64_t task = from; task < to; {further})"):
        yield
        _advance(writer, counters, step)


def _advance(writer: Writer, counters: Sequence[tuple[str, str]], step: str) -> None:
    if not counters:
        return
    *outer, (name, extent) = counters
    if not outer:
        writer.line(f"{name} += {step};" if step else f"{name}++;")
        return
    moved = f"({name} += {step})" if step else f"++{name}"
    with writer.block(f"if ({moved} == {extent})"):
        writer.line(f"{name} = 0;")
        _advance(writer, outer, "")
