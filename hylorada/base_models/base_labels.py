"""How results name a base: with weights of 4 bits it is another base than with all of them."""

QUANTIZATIONS = ("none", "4bit")
_LABELS = {"4bit": "4-bit nf4"}


def base_label(model: str, quantization: str) -> str:
    """Return the name of a base in results, such as ``tiny (4-bit nf4)``."""
    label = _LABELS.get(quantization)
    return model if label is None else f"{model} ({label})"


def labelled_fingerprint(fingerprint: str, quantization: str) -> str:
    """Return the fingerprint of a base, which differs from that of its full weights."""
    # in front, because MLflow keeps only the beginning of a long one
    return fingerprint if quantization == "none" else f"nf4-{fingerprint}"
