"""Does the effect of learned bucket boundaries depend on the context length?

The arms of ``learnable_bucketing`` on blocks of 128, 256 and 512 tokens, each length a study of its
own. For a base with longer positions: ``--set 'grid.block_size=[512, 1024, 2048, 4096]'``.

A fourth arm trains the baseline with shifted sparse attention, within groups of a quarter of the
block, and attends fully in evaluation. It searches nothing that the baseline does not, so the two
differ in nothing else.
"""

from studies import learnable_bucketing

DESCRIPTION = "fixed against learned bucket boundaries, and S2-Attn, at several context lengths"

_ARMS = learnable_bucketing.STUDY["arms"]
_BASELINE = _ARMS["baseline"]
_SPARSE = {**_BASELINE, "config": {**_BASELINE["config"], "shifted_sparse_attention": True}}

STUDY = {
    **learnable_bucketing.STUDY,
    "definition": "context_length",
    "name": "context_length",
    "searches": 3,
    "trials": 2,
    "profile": [1.0],
    "eval_blocks": 8,
    # All test text for 512 tokens, and as much as takes seconds for shorter blocks.
    "test_blocks": 60,
    "defaults": {**learnable_bucketing.STUDY["defaults"], "max_steps": 24},
    "arms": {**_ARMS, "baseline_s2": _SPARSE},
    "comparisons": [*learnable_bucketing.STUDY["comparisons"], ["baseline_s2", "baseline"]],
    "grid": {"block_size": [128, 256, 512]},
}
