from .adapters.adapter import Adapter
from .adapters.landmarks.attention_integrated import AttentionIntegratedLandmark
from .adapters.landmarks.base import initial_gates
from .adapters.landmarks.custom import CustomLandmark, load_landmark_design
from .adapters.landmarks.global_mean import LandmarkLoRA
from .adapters.landmarks.per_layer import PerLayerLandmark
from .adapters.landmarks.position_adaptive import (
    LearnableBucketLandmark,
    PositionAdaptiveLandmark,
    SoftBucketLandmark,
)
from .adapters.landmarks.registry import count_landmark_params
from .adapters.lora import PositionBias
from .adapters.running_pools import Tokens
from .base_models.builtin_folder import builtin_base
from .base_models.loading import BaseInfo, inspect_base, load_base, load_tokenizer
from .config import HyLoRADAConfig, TrainingConfig
from .config_values import field_problems
from .data.batch_order import BatchOrder
from .data.blocks import Blocks, build_blocks
from .data.perplexity import Evaluation
from .data.splits import SPLITS
from .data.text import Text, load_text
from .errors import Diverged, DoesNotFit, InputError, UnreadableCheckpoint, nearest
from .model import HyLoRADAModel
from .multi_adapter.pack import Pack
from .multi_adapter.registered_landmarks import (
    RegisteredLandmarks,
    apply_per_layer_landmarks,
    register_landmark_hook,
)
from .runtime.random_streams import derive_seed
from .saving.peft_format import load_adapter, save_adapter
from .training.checkpoint import load_seat, save_seat
from .training.cpu_parallel import Lanes
from .training.preflight import probe
from .training.seat import Seat
from .training.steps import evaluate, read_step, start_step, train_step

__all__ = [
    "SPLITS",
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
