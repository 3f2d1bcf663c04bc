"""The engine that the Triton tests serve: two slots with room for generations that only somebody's leaving ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tiny import engine
from trtserve.settings import Limits

#: Long enough that a request to its end is still running when a test gets round to cancelling it.
CONTEXT = 16384
SLOTS = 2


def write_tiny_engine(directory: Path, **recipe: Any) -> Path:
    """``recipe``: sections of the resolved recipe that the directory then has."""
    limits = Limits(max_batch_size=SLOTS, max_seq_len=CONTEXT, prefill_chunk=64)
    return engine.write_tiny_engine(directory, limits, add_bos=True, recipe=recipe or None)
