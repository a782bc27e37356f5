"""The `torch.compile` backend: captures a Program, hands it over, and runs the Plan it gets.

May import: nearhint, nearhint_rules, torch. Private names of torch are used in one adapter file.
"""
