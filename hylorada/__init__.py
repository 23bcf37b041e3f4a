"""HyLoRADA adapters for frozen causal language models, and the pack that trains many at once.

``__init__.pyi`` lists the public names. Each is imported on first use, because importing torch and
transformers takes seconds.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
