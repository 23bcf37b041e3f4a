"""What can be said of all points of a study before the first is trained."""

from hylorada import HyLoRADAConfig

from ._study import Study

_BUCKET_FIELDS = (
    *("landmarks", "num_landmarks", "landmark_design", "landmark_bucketing"),
    *("num_buckets", "bucket_spacing"),
)


def target_modules(study: Study) -> set[str]:
    """Names of adapted modules in whatever may be proposed; those that the base decides are not among them."""
    return {
        name for arm in study.arms for c in _configs(study, arm, ("target_modules",)) for name in c.target_modules or ()
    }


def notes(study: Study) -> list[str]:
    """What is legal and may not be what was meant."""
    found = []
    for arm in study.arms:
        worst = max(_configs(study, arm, _BUCKET_FIELDS), key=_empty_log_buckets)
        if empty := _empty_log_buckets(worst):
            found.append(
                f"arms.{arm}: {empty} of {worst.num_buckets} log buckets hold no position of a block of "
                f"{study.block_size}; from {4 * worst.num_buckets} positions on each holds one"
            )
    return found


def _configs(study: Study, arm: str, fields: tuple[str, ...]) -> list[HyLoRADAConfig]:
    """The adapters of an arm with all values of these fields that tell."""
    return [study.configs(arm, point)[0] for point in study.space(arm).combinations(fields)]


def _empty_log_buckets(config: HyLoRADAConfig) -> int:
    """How many fixed buckets of logarithmic width no position of a block falls into."""
    from hylorada._buckets import fixed_edges  # imports torch

    if not config.has_buckets or config.learns_boundaries or config.bucket_spacing != "log":
        return 0
    assert config.max_positions is not None
    starts = {0, *fixed_edges(config.num_buckets, config.max_positions, "log")}
    return config.num_buckets - sum(start < config.max_positions for start in starts)
