"""The daemon `nearhintd`: parses, stores, compiles, verifies, measures and serves.

One asyncio process that never runs a kernel and never loads torch: whatever can crash or hang
happens in the children that `nearhint_daemon.workers` spawns.
May import: nearhint_compiler, nearhint_rules, nearhint_proto; gRPC in `services` and `server`,
sqlite-utils in `store`, and the client's launchers, torch, Triton and numpy in `workers` alone.
"""
