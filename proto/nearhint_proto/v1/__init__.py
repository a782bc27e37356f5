"""Version 1 of the protocol, `nearhint.v1` on the wire: generated code, never edited by hand."""
