"""Regret: what selection loses, measured at sizes that are no hints."""
