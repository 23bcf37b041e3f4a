"""Does the effect of learned bucket boundaries depend on the context length?

The arms of ``learnable_bucketing`` on blocks of 128, 256 and 512 tokens, each length a study of its
own. For a base with longer positions: ``--set 'grid.block_size=[512, 1024, 2048, 4096]'``.
"""

from studies import learnable_bucketing

DESCRIPTION = "fixed against learned bucket boundaries at several context lengths"

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
    "grid": {"block_size": [128, 256, 512]},
}
