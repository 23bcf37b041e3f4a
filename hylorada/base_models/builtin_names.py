"""Names with a meaning of their own: the built-in bases and text, and all linear modules."""

TINY = "tiny"
SMOLLM2 = "smollm2-135m"
PYDOCS = "pydocs"
ALL_LINEAR = "all-linear"  # as a target module: every linear module but the head, as in PEFT
