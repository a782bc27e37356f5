"""Facts about Kernels: pure functions from IR to numbers and expressions.

May import: nearhint_rules, nearhint_compiler.ir.
"""
