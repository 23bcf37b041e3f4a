"""What the published plan does next after a verdict: its scenario, its phase, and a command.

Source: the validation protocol of the public HyLoRADA repository. It runs a study in three phases
of growing budget (:mod:`studies.spec.budgets`), goes on to the next phase where learned boundaries
show a gain, and has four scenarios for the gain that is found in the end. Here the interval of the
study's first comparison decides both, not its point.
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from studies.analysis.comparisons import Comparison
from studies.spec.budgets import BUDGETS, PUBLISHED_SEEDS, budget_after, budget_of
from studies.spec.fields import field_infos
from studies.spec.study import Study
from studies.statistics.decision import SCALE

Go = Literal["go", "no-go", "undecided"]

_LEAST = SCALE[-1][0]  # the smallest improvement in % that the published scale calls one
_MOST_COMPARISONS = 3  # of a study whose first comparison is what it is about
_MOST_SD = 1.0  # in %; runs of the extended budget should differ by less
# What a study chooses about its base and its text.
_PLACE = (
    *("model", "data", "text_column", "document_separator", "block_size"),
    *("dtype", "gradient_checkpointing", "device_map", "quantization"),
)
_LETTERS = {"strong": "A", "moderate": "B", "minimal": "C", "none": "D", "worse": "D"}
_GAINS = {
    "A": "a gain of 2 % or more",
    "B": "a gain of 1 to 2 %",
    "C": "a gain of 0.5 to 1 %",
    "D": "no gain of 0.5 %",
}
_ACTIONS = {
    "A": "repeat the comparison on longer blocks and on a larger base, then write it up",
    "B": "keep {arm} where perplexity matters, search it further, and consider sharing landmarks "
    "over layers as well",
    "C": "keep {reference} as the main design, and report {arm} as an ablation",
    "D": "keep {reference}, and report the comparison as it is; longer blocks and other starts of "
    "the boundaries (boundary_init) are left to try",
}


@dataclass(frozen=True)
class NextStep:
    """The place of a study's first comparison in the published plan.

    Attributes:
        scenario: "A" to "D", or a range such as "B to D" if the interval spans several; empty for a
            study that does not compare learned with fixed boundaries.
        budget: Name of the study's budget, which is its phase; None without a published one.
        go: Whether the next larger budget is worth running; None without one.
        says: The scenario, the phase and the reason, in sentences.
        command: Command that takes the step; None if there is none.
    """

    scenario: str
    budget: str | None
    go: str | None
    says: str
    command: str | None

    def lines(self) -> list[str]:
        """Return the step as lines for a reader, the command on a line of its own."""
        return [self.says, *([f"Next: {self.command}"] if self.command else [])]


def next_step(study: Study, comparisons: Sequence[Comparison]) -> NextStep | None:
    """Return the next step; None where the published plan has nothing to say.

    Args:
        study: The study.
        comparisons: The comparisons that could be made, in the study's order.
    """
    first = next(iter(comparisons), None)
    if first is None or (first.arm, first.reference) != study.comparisons[0]:
        return None
    budget, learns = budget_of(study), _learns_boundaries(study, first)
    if budget is None and not learns:
        return None
    go = None if budget is None or budget_after(budget) is None else decide_go(first, budget)
    parts = [] if budget is None else [_phase(first, budget, go)]
    is_main = learns and len(study.comparisons) <= _MOST_COMPARISONS
    if learns:
        acts = is_main and go != "go" and not _retries(budget, go)
        parts.append(_scenario(first, acts=acts))
    return NextStep(
        scenario=_letters(first) if learns else "",
        budget=budget,
        go=go,
        says=" ".join(parts),
        command=_command(study, first, budget, go) if is_main or go == "go" else None,
    )


def decide_go(c: Comparison, budget: str) -> Go:
    """Decide whether a phase leads to the next one.

    A gain of 0.5 % or more leads on where the interval shows it, and ends the plan where the
    interval excludes it. In between, the first phase leads on, because it is meant to be short; a
    later one needs more searches first.
    """
    if _is_without_gain(c):
        return "no-go"
    if (c.outcome == "better" and c.high <= -_LEAST) or budget == next(iter(BUDGETS)):
        return "go"
    return "undecided"


def _retries(budget: str | None, go: Go | None) -> bool:
    """Return whether the plan tries a phase with more epochs: the first, which has only one."""
    return go == "no-go" and budget == next(iter(BUDGETS))


def _is_without_gain(c: Comparison) -> bool:
    """Return whether a gain that the published scale would name is excluded, or does not matter."""
    equivalent = c.outcome == "equivalent" and c.margin <= _LEAST
    return c.outcome == "worse" or equivalent or c.low > -_LEAST


def _learns_boundaries(study: Study, c: Comparison) -> bool:
    """Return whether a comparison is of learned against fixed boundaries."""
    arm, reference = study.fields(c.arm), study.fields(c.reference)
    return (
        (arm["landmark_bucketing"], reference["landmark_bucketing"]) == ("learnable", "fixed")
        and bool(arm["landmarks"])
        and bool(reference["landmarks"])
    )


def _letters(c: Comparison) -> str:
    """Return the scenario, or the range of scenarios from the largest gain to the smallest."""
    if _is_without_gain(c):
        return "D"
    letters = sorted({_LETTERS[name] for name in c.decision.split(" to ")})
    return " to ".join(letters)


def _is_settled(c: Comparison) -> bool:
    """Return whether the interval lies in one scenario, and its gain is certain if it has one."""
    letters = _letters(c)
    return letters == "D" or (len(letters) == 1 and c.outcome == "better")


def _phase(c: Comparison, budget: str, go: Go | None) -> str:
    number = 1 + list(BUDGETS).index(budget)
    phase = f"Phase {number} of {len(BUDGETS)} ({budget})"
    if go is not None:
        retry = " The plan then tries two or three epochs of the same blocks."
        again = retry if _retries(budget, go) else ""
        return f"{phase}: {go}, because {_reason(c)}.{again}"
    if c.replicate_sd is None or c.replicate_sd < _MOST_SD:
        return f"{phase}, the last."
    return (
        f"{phase}, the last. Its replicates differ by {c.replicate_sd:.2f} % (SD); the plan asks "
        f"for less than {_MOST_SD:g} %."
    )


def _reason(c: Comparison) -> str:
    if c.outcome == "worse":
        return f"{c.arm} is worse than {c.reference}"
    if c.outcome == "equivalent":
        return f"{c.arm} and {c.reference} differ by less than {c.margin:g} %"
    if c.low > -_LEAST:
        return f"a gain of {_LEAST:g} % is excluded"
    if c.outcome == "better" and c.high <= -_LEAST:
        return f"{c.arm} is better than {c.reference} by at least {-c.high:.2f} %"
    return f"a gain of {_LEAST:g} % is neither certain nor excluded"


def _scenario(c: Comparison, *, acts: bool) -> str:
    """Return the scenario in a sentence, with its action unless the next phase follows."""
    letters = _letters(c)
    if len(letters) > 1:
        return f"The interval leaves more than one scenario of the published plan open: {letters}."
    if not _is_settled(c):
        uncertain = "but it is not certain after Holm's adjustment"
        return f"Scenario {letters} of the published plan, {_GAINS[letters]}, {uncertain}."
    action = _ACTIONS[letters].format(arm=c.arm, reference=c.reference)
    then = f": {action}" if acts else ""
    return f"Scenario {letters} of the published plan, {_GAINS[letters]}{then}."


def _command(study: Study, c: Comparison, budget: str | None, go: Go | None) -> str | None:
    name = study.name
    after = budget_after(budget) if budget is not None else None
    if go == "go" and after is not None:
        seeds = ["--seed-list", ",".join(map(str, PUBLISHED_SEEDS))]
        other = f"{name.removesuffix(f'-{budget}')}-{after}"
        last = budget_after(after) is None
        options = ["--budget", after, *(seeds if last else []), "--name", other]
        words = ["run", name, *_place(study), *options]
    elif _retries(budget, go):
        options = ["--set", "epochs=3", "--name", f"{name}-3-epochs"]
        words = ["run", name, *_place(study), *options]
    elif not _is_settled(c):
        words = _more_searches(study, c)
    elif (letter := _letters(c)) == "B":
        words = ["extend", name, "--trials", str(2 * study.trials)]
    elif letter == "C":
        words = ["explain", name] if study.arms[c.arm].space.parameters else []
    else:
        size = 2 * study.block_size
        place = [*_place(study, larger=True), "--block-size", str(size)]
        words = ["run", name, *place, "--name", f"{name}-{size}"]
    return shlex.join(["hylorada", *words]) if words else None


def _place(study: Study, *, larger: bool = False) -> list[str]:
    """Return the options for all that a study has chosen about its base and text.

    A study of another name than its definition's is found by its name, with all its settings.

    Args:
        study: The study.
        larger: Whether the command sets a block size of its own.
    """
    if study.name != study.definition:
        return []
    usual, infos = Study(definition="", name=""), field_infos(Study)
    chosen = [name for name in _PLACE if getattr(study, name) != getattr(usual, name)]
    if "data" not in chosen and study.document_separator == "eos":
        chosen.remove("document_separator")  # what `auto` has decided for the built-in text
    words: list[str] = []
    for name in chosen:
        if larger and name == "block_size":
            continue
        value = getattr(study, name)
        has_option = infos[name].option is not None
        option = [f"--{name.replace('_', '-')}", str(value)]
        words += option if has_option else ["--set", f"{name}={_plain(value)}"]
    return words


def _plain(value: object) -> str:
    """Return a value as ``--set`` takes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _more_searches(study: Study, c: Comparison) -> list[str]:
    """Return the words of a command that narrows the interval."""
    if c.outcome == "undecided":
        return ["resolve", study.name, "--margin", f"{study.margin or _LEAST:g}"]
    return ["extend", study.name, "--searches", str(min(100, 2 * study.searches))]
