"""Draft acceptance: which target token each verify row chooses, and how many drafts that accepts.

The rule is written once, in CUDA C++ (``csrc/``). This module is its Python face; ``docs/acceptance.md`` defines it.
"""

from trtplugins.host import AcceptResult, LookupResult, LookupRule, accept_host, lookup_host
from trtplugins.sampling_arrays import PROMPT_BIT, SamplingArrays

__all__ = ["PROMPT_BIT", "AcceptResult", "LookupResult", "LookupRule", "SamplingArrays", "accept_host", "lookup_host"]
