"""The gRPC services, one a file: read the request, ask the core, write the answer.

`boundary` is what every call passes through: deadlines, metrics, errors as `google.rpc.Status`.
May import: grpc, nearhint_proto, nearhint_rules, nearhint_daemon.core and the parts behind it.
"""
