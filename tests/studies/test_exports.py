"""The public names of `studies`, which load none of the heavy packages until they are used."""

import subprocess
import sys
import textwrap

import studies

PUBLIC = [
    *(
        "Arm",
        "Callbacks",
        "Choice",
        "Estimate",
        "Options",
        "Parameter",
        "Range",
        "Record",
        "Results",
    ),
    *("Space", "Study", "StudyResults", "StudyStopped"),
    *("compare_studies", "estimate", "extend_study", "get_study", "load_results", "run_study"),
    *("add_trial", "stop_study", "stop_trial"),
]


def test_public_names_are_these() -> None:
    assert sorted(studies.__all__) == sorted(PUBLIC)
    assert [name for name in PUBLIC if not hasattr(studies, name)] == []


def test_building_a_study_loads_neither_torch_nor_ray() -> None:
    program = textwrap.dedent(
        """
        import sys
        from studies import get_study
        print(get_study("learnable_bucketing", trials=3).trials)
        print({"torch", "ray", "mlflow", "transformers"} & set(sys.modules))
        """
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("3\nset()\n", "")
