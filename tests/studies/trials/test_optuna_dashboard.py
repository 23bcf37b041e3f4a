"""optuna-dashboard shows a study folder's ``optuna.db`` under the study's own words."""

import json
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.util import setup_testing_defaults

import optuna_dashboard
from optuna.storages import RDBStorage
from store_trials import ARM, Open, run_trial

from studies.trials.optuna_database import address

_App = Callable[[dict[str, Any], Callable[..., object]], Iterable[bytes]]


def _get(app: _App, path: str) -> dict[str, Any]:
    """Return the JSON that the dashboard answers to a request of the browser."""
    environ: dict[str, Any] = {"PATH_INFO": path}
    setup_testing_defaults(environ)
    statuses: list[str] = []
    body = b"".join(app(environ, lambda status, *_: statuses.append(status)))
    assert statuses == ["200 OK"]
    answer: dict[str, Any] = json.loads(body)
    return answer


def test_dashboard_shows_names_metric_and_attributes(open_store: Open) -> None:
    store = open_store()
    record = store.propose(ARM)
    run_trial(store, record)
    store.add_run_ids("MLflow", {record.name: "abc"})
    storage = RDBStorage(address(store.folder / "optuna.db"))
    app = optuna_dashboard.wsgi(storage)
    summaries = _get(app, "/api/studies")["study_summaries"]
    assert [s["study_name"] for s in summaries] == [
        f"try / {arm} / search 0" for arm in (ARM, "fixed")
    ]
    shown = _get(app, f"/api/studies/{summaries[0]['study_id']}")
    assert shown["objective_names"] == ["validation NLL"]
    (trial,) = shown["trials"]
    attributes = {a["key"]: a["value"] for a in trial["user_attrs"]}
    wanted = {"name": record.name, "seed": str(record.seed), "steps": "8", "mlflow_run": "abc"}
    assert attributes == wanted
    storage.engine.dispose()
