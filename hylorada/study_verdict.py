"""``landmark_bucketing="auto"``: what a confirmed study found about learning the boundaries decides."""

import json
from pathlib import Path
from typing import Any, Literal

from hylorada.errors import InputError
from hylorada.runtime.checksums import unsealed

_LEVEL = 0.05


def decided_bucketing(folder: str | None) -> Literal["fixed", "learnable"]:
    """``learnable`` if that was confirmed to be better, else ``fixed``, which has fewer parameters.

    Args:
        folder: of a study (``mlruns/studies/NAME``) that has compared an arm of learnable buckets with one of fixed.

    Raises:
        InputError: no folder, no such study, or no such comparison in it.
    """
    if folder is None:
        raise InputError(
            "landmark_bucketing 'auto' needs bucketing_study, the folder of a confirmed study"
        )
    try:
        study = _read(Path(folder).expanduser() / "study.json", "study")
        results = _read(
            Path(folder).expanduser() / "results.json", f"{study.get('id') or ''}/results"
        )
        return _decided(study, results, folder)
    except (
        AttributeError,
        KeyError,
        TypeError,
        RuntimeError,
    ) as error:  # the last where there is no such home
        raise InputError(f"bucketing_study {folder!r} is damaged: {error!r}") from error


def _decided(study: Any, results: Any, folder: str) -> Literal["fixed", "learnable"]:
    arms = study["arms"].items()
    kinds = {
        name: _bucketing({**study["defaults"], **arm["config"]}, arm["space"]) for name, arm in arms
    }
    found = [
        c
        for c in results["comparisons"]
        if (kinds[c["arm"]], kinds[c["reference"]]) == ("learnable", "fixed")
    ]
    if not found:
        raise InputError(
            f"bucketing_study {folder!r} has no confirmed comparison [learnable arm, fixed arm]"
        )
    # results of earlier versions hold no outcome
    better = [
        c["outcome"] == "better" if c.get("outcome") else c["p_holm"] < _LEVEL and c["high"] < 0
        for c in found
    ]
    return "learnable" if all(better) else "fixed"


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
            f"bucketing_study {str(path.parent)!r} is no finished study: {path.name}: {error.strerror}"
        ) from error
    except ValueError as error:
        raise InputError(f"{path} is damaged: {error}") from error
    return values
