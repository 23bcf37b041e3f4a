"""``landmark_bucketing="auto"``: the verdict of a study decides, when an adapter is built."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from hylorada import Adapter, HyLoRADAConfig, HyLoRADAModel, InputError
from hylorada.runtime.checksums import sealed


def _automatic(folder: str) -> HyLoRADAConfig:
    return HyLoRADAConfig(landmark_bucketing="auto", bucketing_study=folder)


def _write_study(folder: Path, *, high: float, p_holm: float, arm: str = "learnable") -> str:
    study = {
        "defaults": {"r": 4},
        "arms": {
            "plain": {"config": {"landmarks": False}, "space": {}},
            "held": {"config": {"bucket_spacing": "linear"}, "space": {}},
            "learnable": {"config": {"landmark_bucketing": "learnable"}, "space": {}},
            "either": {
                "config": {},
                "space": {"landmark_bucketing": {"choice": ["fixed", "learnable"]}},
            },
        },
    }
    results = {"comparisons": [{"arm": arm, "reference": "held", "high": high, "p_holm": p_holm}]}
    (folder / "study.json").write_text(json.dumps(study))
    (folder / "results.json").write_text(json.dumps(results))
    return str(folder)


@pytest.mark.parametrize(
    ("high", "p_holm", "expected"),
    [(-0.5, 0.01, "learnable"), (-0.5, 0.2, "fixed"), (0.5, 0.01, "fixed"), (0.5, 0.9, "fixed")],
)
def test_auto_bucketing_is_the_verdict_of_a_study(
    tmp_path: Path, high: float, p_holm: float, expected: str
) -> None:
    folder = _write_study(tmp_path, high=high, p_holm=p_holm)
    config = _automatic(folder)
    assert config.resolved() == HyLoRADAConfig(
        landmark_bucketing=expected,  # type: ignore[arg-type]
        bucketing_study=folder,
    )
    assert config.resolved().resolved() == config.resolved()
    assert config.resolved().learns_boundaries == (expected == "learnable")


def test_constructing_an_automatic_configuration_reads_no_file(tmp_path: Path) -> None:
    config = _automatic(str(tmp_path / "none"))
    assert config.landmark_bucketing == "auto"
    assert HyLoRADAConfig.from_json(config.to_json()) == config
    assert HyLoRADAConfig.from_dict(config.to_dict()) == config
    with pytest.raises(InputError, match=r"'auto' is not decided yet; call resolved\(\)"):
        _ = config.learns_boundaries


def test_auto_bucketing_without_buckets_is_fixed() -> None:
    for config in (
        HyLoRADAConfig(landmark_bucketing="auto", landmark_design="global"),
        HyLoRADAConfig(landmark_bucketing="auto", landmarks=False),
    ):
        assert not config.learns_boundaries
        assert config.resolved() == dataclasses.replace(config, landmark_bucketing="fixed")


def test_configuration_without_auto_is_its_own_resolution() -> None:
    config = HyLoRADAConfig(landmark_bucketing="learnable")
    assert config.resolved() is config


def test_auto_bucketing_without_a_verdict_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="landmark_bucketing 'auto' needs bucketing_study"):
        HyLoRADAConfig(landmark_bucketing="auto")
    with pytest.raises(InputError, match=r"is not a finished study: study.json: No such file"):
        _automatic(str(tmp_path / "none")).resolved()
    other = _write_study(tmp_path, high=-1.0, p_holm=0.0, arm="plain")
    with pytest.raises(InputError, match=r"has no confirmed comparison \[learnable arm, fixed arm"):
        _automatic(other).resolved()
    for text in ("{}", "[]", '{"comparisons": [{}]}', '{"comparisons": 3}'):
        (tmp_path / "results.json").write_text(text)
        with pytest.raises(InputError, match="is damaged"):
            _automatic(other).resolved()
    searched = _write_study(tmp_path, high=-1.0, p_holm=0.0, arm="either")
    with pytest.raises(InputError, match=r"has no confirmed comparison \[learnable arm, fixed arm"):
        _automatic(searched).resolved()
    (tmp_path / "results.json").write_text("{")
    with pytest.raises(InputError, match=r"results\.json is damaged"):
        _automatic(other).resolved()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("results.json", '"high": -0.5', '"high": -1.5'),
        ("results.json", '"p_holm": 0.2', '"p_holm": 0.0'),
        ("results.json", '"arm": "learnable"', '"arm": "plain"'),
        ("study.json", '"landmark_bucketing": "learnable"', '"landmark_bucketing": "fixed"'),
        ("study.json", '"id": "a"', '"id": "b"'),
    ],
)
def test_auto_bucketing_is_not_decided_by_a_changed_study(
    tmp_path: Path, file: str, old: str, new: str
) -> None:
    folder = _write_study(tmp_path, high=-0.5, p_holm=0.2)
    for name, owner, more in (
        ("study.json", "study", {"id": "a"}),
        ("results.json", "a/results", {}),
    ):
        values = {**json.loads((tmp_path / name).read_text()), **more}
        (tmp_path / name).write_text(json.dumps(sealed(values, owner)))
    assert _automatic(folder).resolved().landmark_bucketing == "fixed"
    text = (tmp_path / file).read_text()
    assert old in text
    (tmp_path / file).write_text(text.replace(old, new))
    with pytest.raises(
        InputError, match=rf"{file} is damaged: its checksum does not match its content"
    ):
        _automatic(folder).resolved()


def test_auto_bucketing_takes_no_results_of_another_study(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        _write_study(tmp_path / name, high=-0.5, p_holm=0.01)
        for file, owner in (("study.json", "study"), ("results.json", f"{name}/results")):
            values = {**json.loads((tmp_path / name / file).read_text()), "id": name}
            (tmp_path / name / file).write_text(json.dumps(sealed(values, owner)))
    (tmp_path / "b" / "results.json").replace(tmp_path / "a" / "results.json")
    with pytest.raises(InputError, match=r"results\.json is damaged: its checksum does not match"):
        _automatic(str(tmp_path / "a")).resolved()


def test_adapter_is_built_and_saved_with_the_verdict(
    make_base: Callable[..., PreTrainedModel],
    make_config: Callable[..., HyLoRADAConfig],
    tmp_path: Path,
) -> None:
    folder = _write_study(tmp_path, high=-0.5, p_holm=0.01)
    config = make_config(landmark_bucketing="auto", bucketing_study=folder)
    model = HyLoRADAModel(make_base(), config)
    assert config.landmark_bucketing == "auto"
    assert model.active_peft_config == dataclasses.replace(config, landmark_bucketing="learnable")
    assert model.get_learned_boundaries() is not None
    model.save_pretrained(tmp_path / "adapter")
    (tmp_path / "results.json").unlink()  # a saved adapter needs the study no longer
    loaded = HyLoRADAModel.from_pretrained(make_base(), tmp_path / "adapter")
    assert loaded.active_peft_config == model.active_peft_config


def test_adapter_without_a_verdict_is_refused(
    make_base: Callable[..., PreTrainedModel],
    make_config: Callable[..., HyLoRADAConfig],
    tmp_path: Path,
) -> None:
    folder = str(tmp_path / "none")
    config = make_config(landmark_bucketing="auto", bucketing_study=folder)
    with pytest.raises(InputError, match=r"is not a finished study: study.json: No such file"):
        Adapter(make_base(), config, seed=0)
