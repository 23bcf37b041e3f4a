"""Names of the bases and the texts that need neither a folder nor the hub."""

TINY = "tiny"
SMOLLM2 = "smollm2-135m"
PYDOCS, PYDOCSTRINGS, PYSOURCE = "pydocs", "pydocstrings", "pysource"
TEXTS = (PYDOCS, PYDOCSTRINGS, PYSOURCE)  # read by hylorada.data.builtin_texts
