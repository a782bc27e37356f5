"""The functions of libdevice that kernels call, by themselves: reading all of them takes long.

Triton reads all 350 functions from bitcode for each kernel that calls one. Linked once into a
module that declares a few, they can be printed as text (LLVM Language Reference Manual), which
Triton takes in place of its own file; the binaries compute the same.

The functions ask, at each step, whether denormal numbers are flushed to zero (User Guide for NVPTX
Back-end, Reflection Parameters). LLVM answers only when it writes assembly: until then all passes
have to process both ways of each step of each element. Here the answer is in the text.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from nearhint_compiler.codegen.generated import Generated
from nearhint_compiler.codegen.triton.ops import HELPERS

ARGUMENTS: Mapping[str, int] = {
    **dict.fromkeys(("ceil", "floor", "nearbyint", "trunc"), 1),
    **dict.fromkeys(("cos", "erf", "exp", "exp2", "expm1", "log", "log10", "log1p", "log2"), 1),
    **dict.fromkeys(("rsqrt", "sin", "sqrt", "tan"), 1),
    **dict.fromkeys(("fmod", "pow"), 2),
}
"""The functions, of f32, that ops may end in (`codegen.triton.ops`), and what they take."""
HIGH_HALF = "llvm.func @__nv_umulhi(i32, i32) -> i32"
"""What `tl.umulhi` ends in, by which places are divided (`codegen.triton.divisions`)."""

_WIDE = "\n".join(HELPERS["_wide"])
"""How few values of f32 are added in f64, for which there is an instruction."""
_CALLED = re.compile(r"\blibdevice\.(\w+)\(")
_REFLECTED = re.compile(r"\bcall i32 @__nvvm_reflect\(.*")
_NO = "add i32 0, 0"
"""What LLVM answers without a flag for denormals, and to every other question that it may know."""


class Libdevice:
    """A library of few functions in a folder under `scratch`, made when it is first wanted."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._options: Mapping[str, Mapping[str, str]] | None = None

    def options(self, generated: Generated) -> Mapping[str, Mapping[str, str]]:
        """What makes Triton read it; nothing where the source may call what is not in it."""
        others = generated.source.replace(_WIDE, "")
        has_f64 = "float64" in others or any("fp64" in each for each in generated.flags)
        if has_f64 or not ARGUMENTS.keys() >= set(_CALLED.findall(generated.source)):
            return {}
        if self._options is None:
            self._options = self._made()
        return self._options

    def _made(self) -> Mapping[str, Mapping[str, str]]:
        folder = Path(tempfile.mkdtemp(prefix="libdevice-", dir=self._scratch))
        try:
            text = _linked(folder)
        except Exception:  # names that Triton may change: then it reads the whole
            return {}
        library = folder / "libdevice.ll"
        library.write_text(text, encoding="ascii")
        return {"extern_libs": {"libdevice": str(library)}}


def _linked(folder: Path) -> str:
    """The functions, and what these call, as a module of their own."""
    import triton
    from triton._C.libtriton import ir, llvm

    declarations = folder / "declarations.mlir"
    lines = (
        f"llvm.func @__nv_{name}f({', '.join(['f32'] * count)}) -> f32"
        for name, count in ARGUMENTS.items()
    )
    declarations.write_text("\n".join((*lines, HIGH_HALF)), encoding="ascii")
    whole = Path(triton.__file__).parent / "backends" / "nvidia" / "lib" / "libdevice.10.bc"
    context = ir.context()
    ir.load_dialects(context)
    llvm.init_targets()
    llvm_context = llvm.context()
    module = llvm.to_module(ir.parse_mlir_module(str(declarations), context), llvm_context)
    llvm.link_extern_libs(module, [str(whole)])
    text = _REFLECTED.sub(_NO, str(module)).replace("define internal", "define")
    del module  # before the context that it lies in
    return text
