"""Traffic: which sizes clients meet, and where that puts hints."""
