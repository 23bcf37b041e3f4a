"""HyLoRADA adapters for frozen causal language models, and the pack that trains many of them at once."""

from ._adapter import Adapter as Adapter
from ._config import HyLoRADAConfig as HyLoRADAConfig
from ._config import TrainingConfig as TrainingConfig
from ._errors import InputError as InputError
from ._landmarks import LearnableBucketLandmark as LearnableBucketLandmark
from ._landmarks import PositionAdaptiveLandmark as PositionAdaptiveLandmark
from ._landmarks import count_landmark_params as count_landmark_params
from ._lora import PositionBias as PositionBias
from ._model import HyLoRADAModel as HyLoRADAModel
from ._pack import Pack as Pack
