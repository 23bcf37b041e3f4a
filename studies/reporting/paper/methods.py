"""The methods of a study in sentences, from what its folder records and nothing else."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from studies.analysis.results import Results
from studies.analysis.verdict import listed
from studies.files.paths import without_folder
from studies.reporting.paper.adapters import adapter_sentences
from studies.reporting.paper.inference import statistics_sentences
from studies.reporting.paper.prose import cite, cited, code, latex, markdown
from studies.reporting.paper.references import bibliography
from studies.reporting.paper.settings import arm_sentences, training_sentences
from studies.reporting.paper.software import run_sentences, software_sentences
from studies.spec.proposals.start_entries import origin, origins
from studies.spec.study import Study
from studies.trials.records import Record

_SEPARATORS = {
    "eos": "the end-of-text token separates documents",
    "newline": "rows are lines of one text",
    "none": "rows are joined as they are",
}


@dataclass(frozen=True)
class Methods:
    """The methods in two formats, and the works that they cite.

    Attributes:
        markdown: Paragraphs in Markdown, with citations as Pandoc reads them.
        latex: The same paragraphs in LaTeX.
        bibtex: The cited works.
    """

    markdown: str
    latex: str
    bibtex: str


def write_methods(study: Study, results: Results, records: Mapping[str, Record]) -> Methods:
    """Return the methods of a study. What its folder does not record is left out.

    Args:
        study: The study.
        results: Its results, with their provenance.
        records: All trials and runs, by name.
    """
    paragraphs = {
        "Model and text": _material(study, results.provenance),
        "Adapters": [*adapter_sentences(study), *arm_sentences(study, results)],
        "Training": training_sentences(study),
        "Search": _search(study),
        "Statistics": statistics_sentences(study, results),
        "Runs and software": [
            *run_sentences(records),
            *software_sentences(study, results.provenance),
        ],
    }
    texts = {title: " ".join(sentences) for title, sentences in paragraphs.items()}
    return Methods(
        "\n\n".join(f"**{title}.** {markdown(text)}" for title, text in texts.items()) + "\n",
        "".join(f"\\paragraph{{{t}.}} {latex(text)}\n\n" for t, text in texts.items()),
        bibliography(cited(" ".join(texts.values()))),
    )


def _material(study: Study, provenance: Mapping[str, Any]) -> list[str]:
    """Describe base and text."""
    model = _identified(
        provenance,
        ("model_type", "architecture"),
        ("model_revision", "revision"),
        ("model_fingerprint", "fingerprint of the weights"),
    )
    text = _identified(
        provenance, ("data_revision", "revision"), ("data_fingerprint", "fingerprint")
    )
    arms = f"{len(study.arms)} arms" if len(study.arms) > 1 else "one arm"
    column = f" (column {code(study.text_column)})" if study.text_column else ""
    return [
        f"We trained adapters of {arms} on the frozen base {code(without_folder(study.model))}"
        f"{model} with dtype {code(study.dtype)}{_held(study)}.",
        f"The text was {code(without_folder(study.data))}{column}{text}, tokenised with the "
        f"tokenizer of the base{_tokens(provenance)}{_separated(study, provenance)}.",
        f"It was cut into blocks of {study.block_size} tokens without overlap{_blocks(provenance)}."
        f"{_chosen(study)} Perplexity (PPL) is the exponential of the mean loss per predicted "
        "token.",
    ]


def _held(study: Study) -> str:
    """Return how the base was held in memory where that is not the usual way."""
    spread = ", which lay on all GPUs of one machine" if study.device_map != "none" else ""
    recomputed = ", whose layers the backward pass recomputed"
    return spread + (recomputed if study.gradient_checkpointing else "")


def _separated(study: Study, provenance: Mapping[str, Any]) -> str:
    """Return what separates documents; "" where the study left this open and nobody recorded it."""
    separator = provenance.get("document_separator", study.document_separator)
    return f"; {_SEPARATORS[separator]}" if separator in _SEPARATORS else ""


def _identified(provenance: Mapping[str, Any], *named: tuple[str, str]) -> str:
    """Return the recorded values of these keys in brackets; "" if none is recorded."""
    parts = [f"{name} {code(provenance[key])}" for key, name in named if provenance.get(key)]
    return f" ({', '.join(parts)})" if parts else ""


def _tokens(provenance: Mapping[str, Any]) -> str:
    counts = [
        f"{provenance[key]:,} {split}"
        for split in ("training", "validation", "test")
        if (key := f"{split.replace('training', 'train')}_tokens") in provenance
    ]
    return f" ({listed(counts)} tokens)" if counts else ""


def _blocks(provenance: Mapping[str, Any]) -> str:
    uses = {
        "train": "for training",
        "validation": "for validation",
        "test": "for the test, which confirm runs alone read",
    }
    counts = [
        f"{provenance[f'{split}_blocks']:,} {use}"
        for split, use in uses.items()
        if f"{split}_blocks" in provenance
    ]
    return f", {listed(counts)}" if counts else ""


def _chosen(study: Study) -> str:
    """Say which blocks of a split are used where not all are."""
    test = None if study.spread_test else study.test_blocks
    limits = {"training": study.train_blocks, "validation": study.eval_blocks, "test": test}
    first = [split for split, limit in limits.items() if limit]
    text = f" The {listed(first)} blocks are the first of their split." if first else ""
    if study.test_blocks and study.spread_test:
        text += " The test blocks are spread evenly over the test split."
    return text


def _search(study: Study) -> list[str]:
    """Describe how configurations were searched, chosen and trained again."""
    times = f"{study.searches} independent searches" if study.searches > 1 else "one search"
    trials = f"{study.trials} trial{'s' * (study.trials > 1)}"
    sentences = [
        f"The study made {times} of up to {trials} of every arm, scheduled by Ray Tune"
        f"{cite('liaw2018tune')}."
    ]
    sentences += [*_proposals(study), _pruning(study)]
    if study.finalists > 1:
        sentences.append(
            f"In each search, the best {study.finalists} trials of an arm were trained again on "
            f"{study.selection_seeds} fresh selection seed{'s' * (study.selection_seeds > 1)}; the "
            "one with the lowest mean validation loss won."
        )
    factors = [f"{f:g}" for f in sorted(study.factors)]
    rates = f", at {listed(factors)} times the winning learning rate" if len(factors) > 1 else ""
    return [
        *sentences,
        f"The winners of each search were trained from scratch on {_seeds(study)}, which all arms "
        f"share{rates}.",
    ]


def _seeds(study: Study) -> str:
    """Return the paired seeds of the confirm runs: their names, or their number."""
    if not study.seed_list:
        return f"{study.seeds} fresh seed{'s' * (study.seeds > 1)}"
    named = f"the seed{'s' * (study.seeds > 1)} {listed([*map(str, study.seed_list)])}"
    derived = " (in searches after the first, on seeds derived from these)"
    return f"{named}{derived if study.searches > 1 else ''}"


def _proposals(study: Study) -> list[str]:
    """Describe how parameters were drawn."""
    sentences = []
    if study.blocks:
        common = listed([code(n) for n in study.common.parameters])
        sentences.append(
            f"Trial i of every arm had the same seeds, data and {common}: {_first(study)}, then "
            f"points of a scrambled Sobol sequence{cite('owen1998scrambling')}. The winning values "
            "had the lowest validation loss averaged over arms."
        )
    elif study.start:
        sentences.append(f"Each arm of a search began with {_first(study)}.")
    own = any(a.space.parameters for a in study.arms.values())
    if not own and not study.common.parameters:
        return ["No parameter was searched."]
    if not own and study.blocks:
        return sentences
    what = "An arm's own parameters" if study.blocks else "Parameters"
    optuna = f"as implemented in Optuna{cite('akiba2019optuna')}"
    proposed = {
        "tpe": f"proposed by tree-structured Parzen estimators{cite('bergstra2011tpe')} {optuna}",
        "random": f"proposed by random search {optuna}",
        "qmc": f"points of a scrambled Sobol sequence{cite('owen1998scrambling')}",
    }[study.sampler]
    small = "" if study.blocks else "; small spaces are drawn at random without repetition"
    return [*sentences, f"{what} were {proposed}{small}."]


def _first(study: Study) -> str:
    """Name the configurations that a search tried before any that were drawn."""
    given = [f"the winners of the study {code(name)}" for name in origins(study.start)]
    if own := sum(origin(entry) is None for entry in study.start):
        given.append(f"{own} configuration{'s' * (own > 1)} named in advance")
    return ", then ".join([*given, "the defaults"]) if given else "the defaults first"


def _pruning(study: Study) -> str:
    rungs = study.rungs()
    every = f"Validation loss was measured every {study.eval_every} steps"
    if not rungs:
        return f"{every}, and every trial ran to its end."
    steps = f"step{'s' * (len(rungs) > 1)} {listed([*map(str, rungs)])}"
    return (
        f"{every}; ASHA{cite('li2020asha')} stopped trials early, separately for each arm and "
        f"search: the best 1/{study.reduction_factor} continued after {steps}."
    )
