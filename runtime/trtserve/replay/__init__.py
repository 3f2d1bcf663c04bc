"""Replay: recorded outputs put through a drafting policy, so that policies compare on the same tokens and costs.

``traces``    (prompt, output) pairs of token ids, read and written
``curves``    what a verify costs: the curves that ship (``shipped/``), and files that ``trtserve calibrate`` writes
``policies``  what replay asks of a policy, and this project's own through the real drafter
``core``      the replay itself
``report``    its results as a table and as JSON
``page``      as a page that shows which tokens were copied, from where, and what each round cost
"""
