"""Other tasks of the same eight kinds, twelve or more of each, held out: nothing may be fitted, tuned or chosen on them.

They differ from those beside this directory on purpose: other domains, languages, JSON shapes and ways to edit, longer
prompts, other forms of calls and quotations. Texts are this project's own. ``cases(kind, heldout=True)`` gives them.
"""
