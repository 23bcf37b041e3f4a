"""Does the effect of learned bucket boundaries depend on the text?

The arms of ``learnable_bucketing`` on three texts that every Python has: its language reference,
the docstrings of its library, and the source code of its library. For texts of your own, such as a
folder of books and WikiText:
``--set 'grid.data=[pydocs, books/, "wikitext:wikitext-2-raw-v1"]'``.
"""

from studies import learnable_bucketing

DESCRIPTION = "fixed against learned bucket boundaries on several texts"

STUDY = {
    **learnable_bucketing.STUDY,
    "definition": "texts",
    "name": "texts",
    "searches": 3,
    "trials": 2,
    "profile": [1.0],
    "defaults": {**learnable_bucketing.STUDY["defaults"], "max_steps": 24},
    "grid": {"data": ["pydocs", "pydocstrings", "pysource"]},
}
