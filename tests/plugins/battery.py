"""Runs the kernels' quick tests on one compiled library, up to the first failure: ``python battery.py LIBRARY [FILE]``.

FILE is the source that differs: what tests it most directly runs first. What test_mutants.py asks of a mutant; the
tests are those of test_numbers, test_emulated_kernels and test_lookup_kernel.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from plugins import test_emulated_kernels as kernels
from plugins import test_lookup_kernel as lookups
from plugins import test_numbers as numbers
from plugins.kernel_emulation import Emulated


def cases(emulated: Emulated) -> list[Callable[[], None]]:
    return [
        lambda: numbers.test_a_weight_is_two_to_the_32_times_the_exponential(emulated),
        lambda: numbers.test_weights_at_the_ends(emulated),
        lambda: numbers.test_philox_known_answer(emulated),
        lambda: numbers.test_philox_is_keyed_by_seed_and_position(emulated),
        lambda: numbers.test_half_precision_widens_exactly(emulated),
        lambda: kernels.test_all_tokens_tied(emulated),
        lambda: kernels.test_every_accepted_count(emulated, 3),
        lambda: kernels.test_the_edges_of_what_is_kept(emulated),
        lambda: kernels.test_a_ban_holds_for_infinity_and_nan(emulated),
        lambda: kernels.test_penalties_see_the_drafts_before_the_row(emulated),
        lambda: kernels.test_commit_appends_what_was_accepted_and_counts_it(emulated),
        lambda: kernels.test_padded_candidates_decide_as_ragged_rows_do(emulated),
        lambda: kernels.test_greedy(emulated, "shuffled", np.float32),
        lambda: kernels.test_greedy(emulated, "ascending", np.uint16),
        lambda: kernels.test_sampled(emulated, "descending", np.float32, True),
        lambda: kernels.test_sampled(emulated, "shuffled", np.float16, True),
        lambda: lookups.test_random_histories(emulated, "ascending"),
    ]


def main(library: str, file: str = "") -> None:
    ordered = cases(Emulated(Path(library)))
    if file.startswith("lookup"):
        ordered.reverse()
    elif not file.startswith("numbers"):
        ordered = ordered[5:] + ordered[:5]
    for case in ordered:
        case()


if __name__ == "__main__":
    main(*sys.argv[1:])
