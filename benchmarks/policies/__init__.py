"""Drafting policies to compare, each replayed on the same traces.

``base``        what a replayed policy answers
``native``      this project's policies, through the real drafter
``adaptive``    the adaptive policy once more, in plain Python: what the native one is tested against, and what
                ``fit`` reads the shipped priors from
``fit``         fits the priors
the others      the rules of other engines, and the oracle
"""
