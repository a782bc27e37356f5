"""Worker processes: what lowers, compiles, verifies and measures, and what supervises them.

`pool` is the face for the daemon's process and imports none of torch, numpy, Triton or the
compiler. `compile_worker` and `bench_worker` are the programs that run in the children.

May import: nearhint_compiler, nearhint_rules, nearhint_proto, nearhint.launchers, torch, numpy,
Triton; the last five in the children only.
"""
