"""What errors of loaders and of the hub say, in one line."""


def is_gated(error: BaseException | None) -> bool:
    """Return whether an error, or one in its chain of causes, is the hub's refusal of access."""
    while error is not None:
        if type(error).__name__ == "GatedRepoError" or "is a gated dataset" in str(error):
            return True
        error = error.__cause__ or error.__context__
    return False


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, and the second where the first ends in a colon.

    The error's type stands in front where there is no message, or only the key of a `KeyError`.
    """
    lines = str(error).strip().splitlines()
    if not lines or isinstance(error, KeyError):
        lines[:0] = [f"{type(error).__name__}:"]
    return " ".join(line.strip() for line in lines[: 1 + lines[0].endswith(":")]).removesuffix(":")
