from typing import Any

import numpy as np
from numpy.typing import NDArray

def accept(
    logits: Any,
    row_start: NDArray[np.int32],
    num_rows: NDArray[np.int32],
    tokens: NDArray[np.int32],
    sampling: NDArray[np.uint8] | None,
    threads: int,
    isa: str = "",
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.bool_], NDArray[np.int32]]: ...
def lookup(
    history: NDArray[np.int32],
    lengths: NDArray[np.int32],
    allowed: NDArray[np.int32],
    ngram: int,
    min_match: int,
    depth: int,
    max_rows: int,
) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]: ...
def instruction_set() -> str: ...
