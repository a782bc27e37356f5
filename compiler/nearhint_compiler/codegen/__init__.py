"""From a Kernel and a Schedule to source and launch metadata, one module a target.

May import: nearhint_rules, nearhint_compiler.ir, .analysis, .schedule. Triton itself is imported
by the worker that compiles, never here.
"""
