"""Launch metadata in C: the grid, the sizes and the workspace as functions of a Kernel's sizes.

For callers without Python. The arithmetic is that of `nearhint_rules.expr`, on 64 bits.
"""

from __future__ import annotations

from nearhint_compiler.codegen.c.index import INDEX_FUNCTIONS, to_c
from nearhint_compiler.codegen.c.text import Writer
from nearhint_rules.artifact import CudaLaunch
from nearhint_rules.expr import symbols_of

GRID_FUNCTION = "nearhint_grid"
WORKSPACE_FUNCTION = "nearhint_workspace_bytes"


def launch_source(launch: CudaLaunch) -> str:
    """C11 source of `nearhint_grid` and `nearhint_workspace_bytes`.

        void nearhint_grid(const int64_t *dims, int64_t grid[3]);
        int64_t nearhint_workspace_bytes(const int64_t *dims);

    `dims` are the values of the Kernel's symbols, in order, each at least 1.
    """
    writer = Writer()
    writer.line("#include <stdint.h>")
    writer.line()
    for line in INDEX_FUNCTIONS.splitlines():
        writer.line(line)
    writer.line()
    writer.line(f"void {GRID_FUNCTION}(const int64_t *dims, int64_t grid[3])")
    with writer.block():
        for name in symbols_of(*launch.grid):
            writer.line(f"const int64_t {name} = dims[{name[1:]}];")
        for axis, blocks in enumerate(launch.grid):
            writer.line(f"grid[{axis}] = {to_c(blocks)};")
    writer.line()
    writer.line(f"int64_t {WORKSPACE_FUNCTION}(const int64_t *dims)")
    with writer.block():
        for name in symbols_of(launch.workspace_bytes):
            writer.line(f"const int64_t {name} = dims[{name[1:]}];")
        writer.line(f"return {to_c(launch.workspace_bytes)};")
    return writer.text()
