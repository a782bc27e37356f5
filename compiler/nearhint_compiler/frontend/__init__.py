"""From a Program to Kernels and a Plan: lowering tables, fusion, ordering, storage reuse.

May import: nearhint_rules, nearhint_compiler.ir, nearhint_compiler.analysis.
"""
