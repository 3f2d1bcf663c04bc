"""Prompt lookup: drafts copied from text seen before.

``drafter``  all copy sources of one engine, for the batch of a round: what the scheduler uses
``history``  the n-gram index of one sequence: finds candidates
``shared``   the cross-request cache, partitioned by scope
``window``   the window and the miss backoff

The hot path is native (``csrc/``). Finding candidates (``index``, ``shared_cache``, ``sources``) is kept apart from
choosing among them (``policy``): a drafting policy is one file there, found by its name.
"""
