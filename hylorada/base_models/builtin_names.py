"""Names of the bases and the text that need neither a folder nor the hub."""

TINY = "tiny"
SMOLLM2 = "smollm2-135m"
PYDOCS = "pydocs"
