"""The commands of `nearhint`, one module a group."""
