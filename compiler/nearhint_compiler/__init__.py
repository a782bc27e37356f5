"""The loop compiler: from a Program to Kernels, Schedules and source.

No I/O, no gRPC, no SQL, no device. May import: nearhint_rules, sympy.
"""

COMPILER_VERSION = "0.1.0"
"""What Plans and Variants belong to, and what was given up: another version makes both anew."""
