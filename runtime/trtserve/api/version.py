"""The installed version."""

from __future__ import annotations

from importlib import metadata


def version() -> str:
    """trtlookup's version, or "unknown" where it runs from a source tree that was never installed."""
    try:
        return metadata.version("trtlookup")
    except metadata.PackageNotFoundError:
        return "unknown"
