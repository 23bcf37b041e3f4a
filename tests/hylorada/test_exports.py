"""The public names, which need none of the packages of `studies`."""

import subprocess
import sys
import textwrap

import hylorada

PUBLIC = [
    "Adapter",
    "AttentionIntegratedLandmark",
    "BaseInfo",
    "BatchOrder",
    "Blocks",
    "CustomLandmark",
    "Diverged",
    "DoesNotFit",
    "Evaluation",
    "HyLoRADAConfig",
    "HyLoRADAModel",
    "InputError",
    "LandmarkLoRA",
    "Lanes",
    "LearnableBucketLandmark",
    "Pack",
    "PerLayerLandmark",
    "PositionAdaptiveLandmark",
    "PositionBias",
    "RegisteredLandmarks",
    "SPLITS",
    "Seat",
    "SoftBucketLandmark",
    "Text",
    "Tokens",
    "TrainingConfig",
    "UnreadableCheckpoint",
    "apply_per_layer_landmarks",
    "build_blocks",
    "builtin_base",
    "count_landmark_params",
    "derive_seed",
    "evaluate",
    "field_problems",
    "initial_gates",
    "inspect_base",
    "load_adapter",
    "load_base",
    "load_landmark_design",
    "load_seat",
    "load_text",
    "load_tokenizer",
    "nearest",
    "probe",
    "read_step",
    "register_landmark_hook",
    "save_adapter",
    "save_seat",
    "start_step",
    "train_step",
]


def test_public_names_are_these() -> None:
    assert sorted(name for name in dir(hylorada) if not name.startswith("_")) == PUBLIC
    assert sorted(hylorada.__all__) == PUBLIC


def test_every_public_name_has_a_docstring() -> None:
    objects = {name: getattr(hylorada, name) for name in PUBLIC}
    assert [name for name, value in objects.items() if callable(value) and not value.__doc__] == []


def test_import_tries_no_package_of_studies() -> None:
    """No import is tried of packages that look installed but fail to import."""
    program = """
        import sys
        from importlib.machinery import ModuleSpec

        tried = []

        class Blocker:
            def find_spec(self, name, path=None, target=None):
                blocked = name in ("ray", "optuna", "mlflow", "studies")
                return ModuleSpec(name, self) if blocked else None

            def create_module(self, spec):
                tried.append(spec.name)
                raise ImportError(f"{spec.name} is blocked")

            def exec_module(self, module):
                raise NotImplementedError

        sys.meta_path.insert(0, Blocker())
        from hylorada import *
        assert Pack and HyLoRADAModel
        print(tried)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr


def test_names_of_configurations_need_no_torch() -> None:
    program = (
        "import sys; from hylorada import HyLoRADAConfig, InputError, TrainingConfig, derive_seed"
        "; HyLoRADAConfig(); print(sorted({'torch', 'transformers'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout.strip()) == (0, "[]"), run.stderr
