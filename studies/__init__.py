"""The search: Ray Tune schedules, Optuna proposes, ASHA stops, MLflow keeps, and the verdict is held out."""
