"""Errors of the compiler: one class per cause, each with a stable code."""

from __future__ import annotations


class CompilerError(Exception):
    """Base of all errors of the compiler; `code` is stable across releases."""

    code = "COMPILER"


class InvalidKernel(CompilerError):
    """A Kernel breaks a rule of the loop IR, or its text cannot be read."""

    code = "KERNEL_INVALID"


class InvalidSchedule(CompilerError):
    """A Schedule does not fit the Kernel or the Target, or its text cannot be read."""

    code = "SCHEDULE_INVALID"


class Unsupported(CompilerError):
    """This Kernel cannot be generated for this Target; the Fallback serves."""

    code = "UNSUPPORTED"


class Unlowerable(CompilerError):
    """A node, or this form of its arguments, is in no lowering table: it stays opaque."""

    code = "UNLOWERABLE"


class CannotSplit(CompilerError):
    """Loops cannot provably be cut so that others fit them; the loops stay as they are."""

    code = "SPLIT_UNPROVED"
