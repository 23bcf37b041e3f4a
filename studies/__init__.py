"""Studies that compare arms of adapters with Ray Tune, Optuna and MLflow, on held-out text."""
