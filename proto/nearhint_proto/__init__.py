"""The wire: messages and services generated from `v1/*.proto`, and the conversions to the domain.

The generated code is checked in; `make proto` writes it, `make check` compares it.
May import: protobuf, grpcio (generated code), nearhint_rules (the conversions).
"""
