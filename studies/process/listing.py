"""Lists of names in messages and notes."""

from collections.abc import Sequence


def first_names(names: Sequence[str], most: int) -> str:
    """Return the first names, and how many more there are.

    Args:
        names: All names.
        most: How many to name.

    Example:
        >>> first_names(["a", "b"], most=2), first_names(["a", "b", "c", "d"], most=2)
        ('a, b', 'a, b and 2 more')
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
