"""HyLoRADA adapters for frozen causal language models, and the pack that trains many of them at once.

What is exported stands in ``__init__.pyi`` and is imported when it is first used: torch and transformers take seconds.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
