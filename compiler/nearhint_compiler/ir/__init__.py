"""The loop IR: one fused loop nest as frozen values, its legality table, printing and parsing.

May import: nearhint_rules, sympy (in `index.py` alone).
"""
