"""The daemon's children: they lower, compile, verify and measure, and may crash or hang.

They speak framed protobuf with the parent. May import: nearhint_compiler, nearhint_rules,
nearhint_proto, the client's launchers, torch, Triton, numpy; the parent never loads those.
"""
