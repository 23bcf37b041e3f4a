"""Names with a meaning of their own: the built-in bases and texts, and all linear modules."""

TINY = "tiny"
SMOLLM2 = "smollm2-135m"
PYDOCS, PYDOCSTRINGS, PYSOURCE = "pydocs", "pydocstrings", "pysource"
TEXTS = (PYDOCS, PYDOCSTRINGS, PYSOURCE)  # read by hylorada.data.builtin_texts
ALL_LINEAR = "all-linear"  # as a target module: every linear module but the head, as in PEFT
