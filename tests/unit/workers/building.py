"""Programs, Kernels and binaries for the tests of the workers."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

from nearhint.launchers.detect import cpu_device
from nearhint_compiler.codegen import Generated, generate
from nearhint_compiler.ir import nodes as ir
from nearhint_compiler.pipeline import lower
from nearhint_compiler.schedule import candidates
from nearhint_daemon.workers.cc import Headers, compile_c
from nearhint_daemon.workers.toolchain import detect, for_kind
from nearhint_rules import expr as ex
from nearhint_rules import program as pr
from nearhint_rules.artifact import ArtifactRef, CpuLaunch
from nearhint_rules.canonical import content_hash
from nearhint_rules.plan import Fallback
from nearhint_rules.target import Target

S0, S1 = ex.symbol("s0"), ex.symbol("s1")
SYMBOLS = (pr.Symbol("s0", 1, 4096), pr.Symbol("s1", 1, 4096))


def tensor(*shape: ex.Expr | int, dtype: str = "f32") -> pr.TensorType:
    """A contiguous tensor."""
    sizes = tuple(map(ex.as_expr, shape))
    strides = tuple(ex.product(sizes[axis + 1 :]) for axis in range(len(sizes)))
    return pr.TensorType(dtype, sizes, strides)


def node(op: str, *args: pr.Arg, makes: tuple[pr.ValueType, ...]) -> pr.Node:
    """A call of `aten.OP`; what it reads is taken from its arguments."""
    reads = tuple(dict.fromkeys(value for arg in args for value in pr.refs_in(arg)))
    return pr.Node(f"aten.{op}", args, (), reads, makes)


def norm(width: int = 48) -> pr.Program:
    """layer_norm(x + y): rows of `width`."""
    x, row = tensor(S0, S1, width), tensor(S0, S1, 1)
    return pr.Program(
        SYMBOLS,
        (x, x, tensor(width), tensor(width)),
        (
            node("add.Tensor", pr.Ref(0), pr.Ref(1), makes=(x,)),
            node(
                "native_layer_norm.default",
                *(pr.Ref(4), (ex.Int(width),), pr.Ref(2), pr.Ref(3), 1e-5),
                makes=(x, row, row),
            ),
        ),
        (5,),
    )


def activation(width: int = 48) -> pr.Program:
    """gelu(x + bias)."""
    x = tensor(S0, width)
    return pr.Program(
        SYMBOLS[:1],
        (x, tensor(width)),
        (
            node("add.Tensor", pr.Ref(0), pr.Ref(1), makes=(x,)),
            node("gelu.default", pr.Ref(2), makes=(x,)),
        ),
        (3,),
    )


def attention_weights() -> pr.Program:
    """softmax(x / 8 + mask), all sizes symbolic."""
    x = tensor(S0, 3, S1, S1)
    return pr.Program(
        SYMBOLS,
        (x, tensor(S0, 1, 1, S1)),
        (
            node("mul.Scalar", pr.Ref(0), 0.125, makes=(x,)),
            node("add.Tensor", pr.Ref(2), pr.Ref(1), makes=(x,)),
            node("_softmax.default", pr.Ref(3), ex.Int(-1), False, makes=(x,)),
        ),
        (4,),
    )


def column_sums() -> pr.Program:
    """The sum of squares over the first dim."""
    x = tensor(S0, S1)
    return pr.Program(
        SYMBOLS,
        (x,),
        (
            node("mul.Tensor", pr.Ref(0), pr.Ref(0), makes=(x,)),
            node("sum.dim_IntList", pr.Ref(1), (ex.Int(0),), makes=(tensor(S1),)),
        ),
        (2,),
    )


@cache
def lowered(program: pr.Program) -> tuple[ir.Kernel, Fallback]:
    """The one Kernel of a Program, and what it replaces."""
    found = lower(program, target_kind="cpu")
    (kernel,) = found.kernels
    return kernel.kernel, found.fallbacks[0]


@cache
def target() -> Target:
    """This machine."""
    return Target(cpu_device(), for_kind("cpu", detect()))


def default_source(kernel: ir.Kernel) -> Generated:
    """The default Schedule's source, to be compiled fast rather than to run fast."""
    generated = generate(kernel, candidates(kernel, target())[0], target())
    return replace(generated, flags=(*generated.flags, "-O1"))


@cache
def _headers() -> Headers:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return Headers(folder)


def compiled(generated: Generated, folder: Path) -> tuple[bytes, ArtifactRef]:
    """The binary of generated C."""
    built = compile_c(generated, scratch=folder, headers=_headers())
    return built.binary, ArtifactRef(content_hash(built.binary), len(built.binary), built.launch)


def hand_written(body: str) -> Generated:
    """A C kernel by hand: `x` and `y` are parameters 0 and 1, `n` is k0."""
    source = f"""
#include <stdint.h>
#include <stdlib.h>
#include <signal.h>
#include <math.h>
void entry(void *const *parameters, const int64_t *dims, int32_t threads) {{
    const float *x = parameters[0];
    float *y = parameters[1];
    const int64_t n = dims[0];
    {body}
}}
"""
    return Generated("c", source, CpuLaunch("entry", ex.symbol("k0"), 1))


def doubled() -> ir.Kernel:
    """y[p0] = x[p0] + x[p0]: what `hand_written` kernels are meant to compute."""
    k0, p0 = ex.symbol("k0"), ex.symbol("p0")
    return ir.Kernel(
        ("k0",),
        (k0,),
        (),
        (ir.Param("in", "f32"), ir.Param("out", "f32")),
        (ir.Load(0, p0), ir.Op("add", "f32", (0, 0)), ir.Store(1, p0, 1)),
    )
