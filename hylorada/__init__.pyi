from ._adapter import Adapter
from ._bases import BaseInfo, inspect_base, load_base, load_tokenizer
from ._batches import BatchOrder
from ._blocks import Blocks, build_blocks
from ._checkpoint import UnreadableCheckpoint, load_seat, save_seat
from ._config import HyLoRADAConfig, TrainingConfig, field_problems
from ._errors import InputError, nearest
from ._evaluation import Evaluation
from ._landmarks import (
    AttentionIntegratedLandmark,
    LandmarkLoRA,
    LearnableBucketLandmark,
    PerLayerLandmark,
    PositionAdaptiveLandmark,
    count_landmark_params,
)
from ._lanes import Lanes
from ._lora import PositionBias
from ._model import HyLoRADAModel
from ._pack import Pack
from ._peft_format import load_adapter, save_adapter
from ._probe import probe
from ._seat import Diverged, Seat
from ._seeding import derive_seed
from ._splits import SPLITS
from ._text import Text, load_text
from ._training import DoesNotFit, evaluate, read_step, start_step, train_step

__all__ = [
    "SPLITS",
    "Adapter",
    "AttentionIntegratedLandmark",
    "BaseInfo",
    "BatchOrder",
    "Blocks",
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
    "Seat",
    "Text",
    "TrainingConfig",
    "UnreadableCheckpoint",
    "build_blocks",
    "count_landmark_params",
    "derive_seed",
    "evaluate",
    "field_problems",
    "inspect_base",
    "load_adapter",
    "load_base",
    "load_seat",
    "load_text",
    "load_tokenizer",
    "nearest",
    "probe",
    "read_step",
    "save_adapter",
    "save_seat",
    "start_step",
    "train_step",
]
