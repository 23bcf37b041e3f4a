"""Completion in a real bash, which calls the program for it."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from studies.cli.arguments import COMMANDS
from studies.trials.study_folders import stored_names

# Does what bash does after Tab: it fills these variables and calls the registered function.
_SCRIPT = """
export PATH={bin}:$PATH
eval "$(register-python-argcomplete hylorada)"
read -ra COMP_WORDS <<< {line}
[[ {line} == *" " ]] && COMP_WORDS+=("")
COMP_LINE={line} COMP_POINT=${{#COMP_LINE}} COMP_TYPE=9 COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
registered=($(complete -p hylorada))
for i in "${{!registered[@]}}"; do
  [[ ${{registered[i]}} == -F ]] && ${{registered[i + 1]}} hylorada
done
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


def _offered(line: str, folder: Path) -> list[str]:
    """Return what bash offers after Tab at the end of a line, in a folder."""
    script = _SCRIPT.format(
        bin=shlex.quote(str(Path(sys.executable).parent)), line=shlex.quote(line)
    )
    environment = {**os.environ, "COMP_WORDBREAKS": " \t\n\"'><=;|&(:"}
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return sorted(word.strip() for word in done.stdout.splitlines() if word.strip())


def _study(storage: Path, name: str) -> None:
    place = storage / "studies" / name
    place.mkdir(parents=True)
    arms = {"plain": {}, "soft": {"config": {"landmark_bucketing": "soft"}}}
    values = {"definition": "mine", "name": name, "trials": 4, "seeds": 2, "arms": arms}
    (place / "study.json").write_text(json.dumps(values))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder with two storages: mlruns holds the study learned, apart holds two."""
    _study(tmp_path / "mlruns", "learned")
    _study(tmp_path / "apart", "first")
    _study(tmp_path / "apart", "second")
    (tmp_path / "study.yaml").write_text("")
    return tmp_path


def test_commands_are_offered(folder: Path) -> None:
    assert _offered("hylorada ", folder) == sorted(COMMANDS)
    assert _offered("hylorada rep", folder) == ["report"]


def test_options_are_offered_after_a_dash(folder: Path) -> None:
    offered = _offered("hylorada run x --se", folder)
    assert {"--searches", "--seeds", "--set", "--seed"} <= set(offered)
    assert all(option.startswith("--se") for option in offered)


def test_definitions_and_studies_are_offered(folder: Path) -> None:
    assert _offered("hylorada run lea", folder) == ["learnable_bucketing", "learned"]
    assert _offered("hylorada report ", folder) == ["learned"]
    assert _offered("hylorada report --storage apart ", folder) == ["first", "second"]


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("hylorada export learned --arm ", ["plain", "soft"]),
        ("hylorada run x --budget ", ["extended", "full", "quick"]),
        ("hylorada run x --progress ", ["auto", "live", "none", "plain"]),
        ("hylorada run --config s", ["study.yaml"]),
        ("hylorada run x --model t", ["tiny"]),
        ("hylorada run x --set defaults.lora_a", ["defaults.lora_alpha="]),
        ("hylorada run x --trials ", []),
    ],
)
def test_values_are_offered(folder: Path, line: str, offered: list[str]) -> None:
    assert _offered(line, folder) == offered


def test_damaged_study_offers_no_arms(folder: Path) -> None:
    (folder / "mlruns" / "studies" / "learned" / "study.json").write_text("{")
    assert stored_names(folder / "mlruns") == ["learned"]
    assert _offered("hylorada export learned --arm ", folder) == []


def test_answer_waits_for_no_import() -> None:
    program = (
        "import sys; from studies.cli import arguments; parser, commands = "
        "arguments._make_parser(); from studies.cli.completion import complete; "
        "print(sorted({'torch', 'ray', 'mlflow', 'transformers', 'optuna'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "[]\n"
