"""The window rule: how many tokens the next copy may propose, and which rounds go without one."""

from __future__ import annotations

from trtserve.lookup import _native


class Window:
    """One sequence's window and miss backoff.

    The size starts at 2 (or ``max_drafts`` if lower), doubles after a copy accepted in full up to ``max_drafts``, and
    halves, not below 1, after one cut short. After k copies in a row of which nothing was accepted, the next
    min(2**(k-1), ``miss_backoff``) rounds are skipped; any accepted token sets k to 0.

    Args:
        max_drafts: 1 to 64.
        miss_backoff: most rounds skipped at once, 0 to 1024; 0 never skips.
    """

    def __init__(self, max_drafts: int, miss_backoff: int) -> None:
        self._window = _native.Window(max_drafts, miss_backoff)

    def skip_round(self) -> bool:
        """Count one round. True when the backoff holds it back."""
        return self._window.skip_round()

    def settle(self, proposed: int, accepted: int) -> None:
        """``accepted`` of ``proposed`` verified drafts; 0 <= accepted <= proposed, proposed >= 1."""
        self._window.settle(proposed, accepted)

    @property
    def size(self) -> int:
        """Most tokens the next copy may propose."""
        return self._window.size

    @property
    def backing_off(self) -> bool:
        """The next round will be skipped."""
        return self._window.backing_off

    @property
    def rounds_skipped(self) -> int:
        """Rounds skipped so far."""
        return self._window.rounds_skipped
