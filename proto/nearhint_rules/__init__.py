"""The vocabulary that daemon, compiler and clients share, in the standard library alone.

Size expressions, Programs, Plans, launch metadata, Guards, Tables, selection, canonical bytes and
hashing. Everything here is a frozen value or a pure function: no I/O, no clock, no randomness.
May import: the standard library.
"""
