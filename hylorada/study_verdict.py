"""The verdict of a confirmed study on learnable boundaries, for ``landmark_bucketing="auto"``."""

import json
from pathlib import Path
from typing import Any, Literal

from hylorada.errors import InputError
from hylorada.runtime.checksums import unsealed

_LEVEL = 0.05


def decided_bucketing(folder: str) -> Literal["fixed", "learnable"]:
    """Return ``learnable`` if that was confirmed to be better, else ``fixed``.

    ``fixed`` is the default because it has fewer parameters.

    Args:
        folder: folder of a study (``mlruns/studies/NAME``) that has compared an arm of learnable
            buckets with one of fixed buckets.

    Raises:
        InputError: there is no such study, it is damaged, or it has no such comparison.
    """
    try:
        study = _read(Path(folder).expanduser() / "study.json", "study")
        results = _read(
            Path(folder).expanduser() / "results.json", f"{study.get('id') or ''}/results"
        )
        return _verdict(study, results, folder)
    # `expanduser` raises RuntimeError where the user's home folder is unknown
    except (AttributeError, KeyError, TypeError, RuntimeError) as error:
        raise InputError(f"bucketing_study {folder!r} is damaged: {error!r}") from error


def _verdict(study: Any, results: Any, folder: str) -> Literal["fixed", "learnable"]:
    kinds = {
        name: _bucketing({**study["defaults"], **arm["config"]}, arm["space"])
        for name, arm in study["arms"].items()
    }
    comparisons = [
        c
        for c in results["comparisons"]
        if (kinds[c["arm"]], kinds[c["reference"]]) == ("learnable", "fixed")
    ]
    if not comparisons:
        raise InputError(
            f"bucketing_study {folder!r} has no confirmed comparison [learnable arm, fixed arm]"
        )
    better = [_is_better(comparison) for comparison in comparisons]
    return "learnable" if all(better) else "fixed"


def _is_better(comparison: dict[str, Any]) -> bool:
    if comparison.get("outcome"):
        return bool(comparison["outcome"] == "better")
    # results of earlier versions hold no outcome
    return bool(comparison["p_holm"] < _LEVEL and comparison["high"] < 0)


def _bucketing(fields: dict[str, Any], space: dict[str, Any]) -> str:
    if {"landmark_bucketing", "landmark_design", "landmarks"} & {*space}:
        return "searched"
    if (
        not fields.get("landmarks", True)
        or fields.get("num_landmarks") == 0
        or fields.get("landmark_design", "position_adaptive") != "position_adaptive"
    ):
        return "none"
    return str(fields.get("landmark_bucketing", "fixed"))


def _read(path: Path, owner: str) -> Any:
    try:
        values: Any = unsealed(json.loads(path.read_text()), owner)
    except OSError as error:
        raise InputError(
            f"bucketing_study {str(path.parent)!r} is not a finished study: "
            f"{path.name}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}") from error
    return values
