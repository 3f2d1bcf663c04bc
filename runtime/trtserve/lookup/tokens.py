"""How token ids are given to every class of this package."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Tokens: TypeAlias = "NDArray[np.int32] | list[int] | tuple[int, ...]"
"""An int32 array (one-dimensional, C-contiguous, read in place), or a list or tuple of ints. Ids: 0 to 2**31 - 1."""
