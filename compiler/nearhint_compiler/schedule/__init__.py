"""Schedules as data: the value itself, the default by heuristic, the space of alternatives.

May import: nearhint_rules, nearhint_compiler.ir, nearhint_compiler.analysis.
"""
