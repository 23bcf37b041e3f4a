"""Studies that compare arms of adapters with Ray Tune, Optuna and MLflow, on held-out text.

``__init__.pyi`` lists the public names. Each is imported on first use, so that commands which only
read studies start at once.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
