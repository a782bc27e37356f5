"""The version of this client: one number, read by the package's face and the connection."""

from __future__ import annotations

VERSION = "0.1.0"
