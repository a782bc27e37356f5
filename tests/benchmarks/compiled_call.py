"""What a compiled call costs around its kernel, beside the bare kernel and beside Inductor.

    python -m tests.benchmarks.compiled_call [--pairs N] [--json]

Functions of one fused kernel, tuned by a daemon of the benchmark's own and then left alone. *Ours*
is what we add to one launch: the captured graph's call (sizes, selection, Guards, packing, return)
less the binary called on fresh outputs and addresses that are ready. *Whole* is the call
of the function that torch.compile returned, torch's guards included, for nearhint and for
Inductor's dynamic mode, in interleaved pairs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from types import FunctionType
from typing import Any

import torch
from tests.benchmarks.cpu_cases import CHAINS, Case
from tests.benchmarks.cpu_kernels import bare_launch, geometric_mean, interleaved
from tests.benchmarks.serving import Serving, cpu_conditions
from torch import fx

from nearhint.session import ProgramHandle
from nearhint_rules import expr as ex
from nearhint_rules.plan import Launch
from nearhint_torch import backend
from nearhint_torch.adapter import aot_inference
from nearhint_torch.options import Options
from nearhint_torch.runner import CompiledGraph

FUNCTIONS = (
    "residual_layer_norm 1000x384",
    "bias_gelu 480x1536",
    "bias_relu_residual 1000x768",
    "swiglu 500x2730",
    "masked_softmax 8x12x60x60",
    "llama_rms_norm bf16 500x2000",
)
SMALL = 3
"""The largest first size of an argument in a small call, which is little but its overhead."""


@dataclass(frozen=True, slots=True)
class Row:
    """One function at one size: medians in microseconds; `ratio` is Inductor's time over ours."""

    name: str
    kernel_us: float
    graph_us: float
    ours_us: float
    whole_us: float
    inductor_us: float
    ratio: float


@dataclass
class Call:
    """A captured graph of one launch, with the arguments of its last call."""

    graph: CompiledGraph
    handle: ProgramHandle
    arguments: Sequence[Any] = ()

    def bare(self) -> Callable[[], object]:
        """The served binary, with fresh outputs as every call has them, and nothing else."""
        snapshot = self.handle.snapshot
        assert snapshot is not None
        ((place, step),) = [
            (place, step)
            for place, step in enumerate(snapshot.plan.steps)
            if isinstance(step, Launch)
        ]
        sizes = self.graph._resolver.sizes(self.graph._read_sizes(self.arguments))
        dims = tuple(ex.evaluate(dim, sizes) for dim in step.dims)
        kernel = snapshot.choose(place, dims).kernel
        if kernel is None:
            raise SystemExit("the original ops serve: there is no launch to look at")
        return bare_launch(step, kernel, sizes, self.arguments)


def captured(case: Case, arguments: Sequence[torch.Tensor]) -> tuple[Call, Callable[..., Any]]:
    """The graph inside the compiled function, and the function: calling it notes the arguments."""
    found, function = noting(case.function, dynamic=True)
    function(*arguments)
    return found[0], function


def noting(function: Callable[..., Any], *, dynamic: bool) -> tuple[list[Call], Callable[..., Any]]:
    """The function compiled as torch's users compile it, and its captures as calls make them."""
    found: list[Call] = []

    def compiler(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        made: object = backend._compile(graph, inputs, options=Options())
        assert isinstance(made, CompiledGraph)
        call = Call(made, made._handle)
        found.append(call)

        def remember(*args: Any) -> Any:
            call.arguments = args
            return made(*args)

        return remember

    spying: Any = lambda graph, inputs: aot_inference(graph, inputs, compiler=compiler)  # noqa: E731
    return found, torch.compile(copy_of(function), backend=spying, dynamic=dynamic)


def copy_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function with a code object of its own: torch keeps its captures by that."""
    assert isinstance(function, FunctionType)
    copied: Callable[..., Any] = FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    return copied


def measure(case: Case, serving: Serving, pairs: int) -> list[Row]:
    """The case at its own sizes, and at few rows."""
    torch._dynamo.reset()
    serving.tune()
    full = case.arguments()
    rows = full[0].shape[0]
    small = [tensor[:SMALL] if tensor.shape[0] == rows else tensor for tensor in full]
    call, ours_noting = captured(case, full)
    ours = torch.compile(copy_of(case.function), backend="nearhint", dynamic=True)
    inductor = torch.compile(copy_of(case.function), backend="inductor", dynamic=True)
    for arguments in (full, small):
        for function in (ours_noting, ours, inductor):
            function(*arguments)
    serving.settle()
    serving.leave_alone()
    found: list[Row] = []
    for name, arguments in ((case.name, full), (f"{case.name}, {SMALL} rows", small)):
        ours_noting(*arguments)
        given = call.arguments
        medians_us = [
            median_ns / 1e3
            for median_ns in interleaved(
                [
                    call.bare(),
                    partial(call.graph, *given),
                    partial(ours, *arguments),
                    partial(inductor, *arguments),
                ],
                pairs,
            )
        ]
        bare_us, graph_us, whole_us, inductor_us = medians_us
        ratio = inductor_us / whole_us
        found.append(Row(name, bare_us, graph_us, graph_us - bare_us, whole_us, inductor_us, ratio))
    return found


def main() -> None:
    """Command line; see the module's docstring."""
    parser = argparse.ArgumentParser(description="what a compiled call costs around its kernel")
    parser.add_argument("--pairs", type=int, default=51)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    options = parser.parse_args()
    say = sys.stderr if options.json else sys.stdout
    rows: list[Row] = []
    with torch.no_grad(), Serving() as serving:
        for case in CHAINS:
            if case.name not in FUNCTIONS:
                continue
            for row in measure(case, serving, options.pairs):
                rows.append(row)
                say.write(
                    f"{row.name:40} kernel {row.kernel_us:7.1f} us  graph {row.graph_us:7.1f}"
                    f"  ours {row.ours_us:5.1f}  whole {row.whole_us:7.1f}"
                    f"  inductor {row.inductor_us:7.1f}  ratio {row.ratio:5.2f}\n"
                )
                say.flush()
    result = {
        "conditions": cpu_conditions("python -m tests.benchmarks.compiled_call"),
        "threads": torch.get_num_threads(),
        "ours_us_largest": max(row.ours_us for row in rows),
        "ratio_geomean": geometric_mean([row.ratio for row in rows]),
        "ratio_least": min(row.ratio for row in rows),
        "rows": [asdict(row) for row in rows],
    }
    say.write(
        f"ours at most {result['ours_us_largest']:.1f} us; against Inductor: geometric mean"
        f" {result['ratio_geomean']:.3f}, least {result['ratio_least']:.3f}\n"
    )
    if options.json:
        json.dump(result, sys.stdout, indent=1)
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
