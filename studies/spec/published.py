"""The published claims, and the faults of the code behind them, for the study ``replication``.

Everything else about that study follows from this list: its arms, what it compares, its table.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

REPLICATION = "replication"
BUCKET_RANGE = 32_768  # positions over which the published code spread its buckets
TEMPERATURE = 0.1


@dataclass(frozen=True)
class Fault:
    """A fault of the published code that a run can repeat.

    Attributes:
        title: what the report calls it.
        config: the fields that switch it on.
        inside: the fault that it is a part of; it is never switched off alone. Empty for others.
    """

    title: str
    config: Mapping[str, Any]
    inside: str = ""


@dataclass(frozen=True)
class Family:
    """The arms of one method: without faults, with all of them, and with one on or off alone.

    Attributes:
        config: the method's own fields.
        faults: names of the faults that touch it.
    """

    config: Mapping[str, Any]
    faults: tuple[str, ...]

    def arm_name(self, family: str, faults: frozenset[str]) -> str:
        """Return the name of the arm that has those of the faults that touch this family."""
        own = [f for f in self.faults if f in faults]
        whole = [f for f in self.faults if not FAULTS[f].inside]
        off = [f for f in whole if f not in own]
        if not own:
            return f"{family}_clean"
        if not off:
            return f"{family}_published"
        return f"{family}_only_{own[0]}" if len(own) == 1 else f"{family}_without_{off[0]}"


@dataclass(frozen=True)
class Claim:
    """A published figure.

    Attributes:
        title: what the figure is said to show.
        family: the method.
        reference: the method that it is compared with.
        published: change in PPL in %, negative is better; several where several were published.
        against_base: whether a figure was measured against the base without any adapter.
    """

    title: str
    family: str
    reference: str
    published: tuple[float, ...]
    against_base: bool = False

    @property
    def faults(self) -> tuple[str, ...]:
        """Names of the faults that touch either side."""
        both = (*FAMILIES[self.family].faults, *FAMILIES[self.reference].faults)
        return tuple(dict.fromkeys(both))

    @property
    def all_faults(self) -> frozenset[str]:
        """The faults of the published protocol."""
        return frozenset(f for f in self.faults if not FAULTS[f].inside)

    def pair(self, faults: frozenset[str]) -> tuple[str, str]:
        """Return the two arms that have those of the faults that touch them."""
        arm, reference = (
            FAMILIES[name].arm_name(name, faults) for name in (self.family, self.reference)
        )
        return arm, reference


FAULTS: Mapping[str, Fault] = {
    "untrained": Fault(
        "learnable landmarks outside the optimizer", {"replication_untrained": "landmarks"}
    ),
    "held": Fault(
        "of these, boundaries alone", {"replication_untrained": "boundaries"}, inside="untrained"
    ),
    "temperature": Fault("temperature 0.1 at 32 buckets", {"temperature": TEMPERATURE}),
    "range": Fault(
        "buckets linear over 32,768 positions", {"replication_bucket_range": BUCKET_RANGE}
    ),
    "pooling": Fault("pooling over future tokens", {"replication_noncausal_pooling": True}),
    "bf16": Fault("adapter in bf16", {"replication_bf16": True}),
    "pads": Fault("pads in the loss", {"replication_pads": True}),
}

FAMILIES: Mapping[str, Family] = {
    "baseline": Family({"landmarks": False}, ("bf16", "pads")),
    "dora": Family({"landmarks": False, "use_dora": True}, ("bf16", "pads")),
    "global": Family({"landmark_design": "global"}, ("pooling", "bf16", "pads")),
    "fixed": Family({"landmark_bucketing": "fixed"}, ("range", "bf16", "pads")),
    "learnable": Family(
        {"landmark_bucketing": "learnable"}, ("untrained", "held", "temperature", "bf16", "pads")
    ),
}

CLAIMS = (
    Claim("landmarks with fixed buckets", "fixed", "baseline", (-9.19, -18.37), against_base=True),
    Claim("global landmarks", "global", "baseline", (-9.19, -18.37)),
    Claim("DoRA", "dora", "baseline", (5.62,)),
    Claim("learnable boundaries", "learnable", "fixed", (2.26,)),
)


def fault_sets(claim: Claim) -> tuple[frozenset[str], ...]:
    """Return the sets of faults that a claim is measured with: none, all, each alone, each off."""
    every = claim.all_faults
    alone = tuple(frozenset({fault}) for fault in claim.faults)
    off = tuple(every - {fault} for fault in claim.faults if fault in every)
    return (frozenset(), every, *alone, *off)


def published_arms() -> dict[str, dict[str, Any]]:
    """Return the fields of every arm of the study by its name, family by family."""
    arms: dict[str, dict[str, Any]] = {}
    for name, family in FAMILIES.items():
        for claim in CLAIMS:
            for faults in fault_sets(claim) if name in (claim.family, claim.reference) else ():
                on = [FAULTS[f].config for f in family.faults if f in faults]
                config = dict(family.config)
                for fields in on:
                    config |= fields
                arms[family.arm_name(name, faults)] = config
    return arms
