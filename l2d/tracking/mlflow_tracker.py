"""MLflow: one MLflow run per run folder, brought up to date with metrics.csv whenever its server answers."""

import csv
import io
import json
import os
import re
import socket
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from l2d.atomic import atomic_write, read_text
from l2d.config import flatten
from l2d.errors import UserError, notify
from l2d.tracking.run_folder import environment, sweep_manifest
from l2d.tracking.shown import (
    Table,
    best_epoch,
    deferral,
    described,
    first_line,
    logged_epochs,
    reliability,
    scalars,
)

# How long a request may take; MLflow's own defaults would let a run wait for minutes. What is set in the environment wins.
REQUESTS = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "10", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1"}
QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}
RETRY_SECONDS = 60  # after a request that failed, epochs are kept for this long before they are sent again
MAX_PARAMS = 100  # in one request
STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}


class MlflowTracker:
    """Its id is in the file `mlflow_id`, so a resumed training continues the same MLflow run.

    The server has to answer when the run starts. From then on it never stops a training: epochs that it did not take are sent
    again later, at the latest when the run ends.
    """

    def __init__(self, tracking_uri: str, experiment: str, weights: bool):
        if not find_spec("mlflow"):
            raise UserError("MLflow is not installed; pip install 'l2d[mlflow]' adds it.")
        if "@" in urlsplit(tracking_uri).netloc:
            raise UserError(
                "logger.tracking_uri has a password in it, which config.yaml would record; export MLFLOW_TRACKING_USERNAME and "
                "MLFLOW_TRACKING_PASSWORD instead."
            )
        for name, value in (REQUESTS | QUIET).items():
            os.environ.setdefault(name, value)
        self.mlflow: Any = import_module("mlflow")
        self.weights, self.run_id = weights, ""
        try:
            self.client = self.mlflow.MlflowClient(tracking_uri)
            self.experiment = self._experiment(experiment)
        except Exception as error:  # no server, no database, no permission: of many classes
            raise UserError(
                f"logger.tracking_uri={tracking_uri} takes no runs for logger.experiment={experiment} ({_reason(error)}); start "
                "`mlflow server` there, or choose another address or logger."
            ) from error

    def _experiment(self, name: str) -> str:
        """The id of the experiment of this name, which is made if there is none; another run may make it at the same time."""
        found = self.client.get_experiment_by_name(name)
        if not found:
            try:
                return str(self.client.create_experiment(name))
            except Exception:
                found = self.client.get_experiment_by_name(name)
                if not found:
                    raise
        return str(found.experiment_id)

    def start(self, name: str, config: dict[str, Any], folder: Path) -> None:
        self.folder, self.next_try, self.reported = folder, 0.0, False
        known = folder / "mlflow_id"
        run = self._earlier(read_text(known).strip()) if known.exists() and not config["force"] else None
        if run is None:
            run = self.client.create_run(self.experiment, run_name=name, tags=_tags(name, config))
            atomic_write(known, lambda file: file.write(f"{run.info.run_id}\n".encode()), durable=False)
        else:
            self.client.update_run(run.info.run_id, status="RUNNING")
        params = {_key(key): _text(value) for key, value in flatten(config).items()}
        self._log_params(run.info.run_id, {key: params[key] for key in params.keys() - run.data.params.keys()})
        self.run_id, self.last = run.info.run_id, run.data.metrics.get("epoch", 0)
        self.unsent: list[
            tuple[dict[str, float], int]
        ] = []  # each with its time, by which the server knows a repetition
        for row in logged_epochs(folder):
            self._keep(row)

    def _earlier(self, run_id: str) -> Any:
        """The MLflow run of an earlier attempt; None where this server has none, or one that was deleted."""
        try:
            run = self.client.get_run(run_id)
        except self.mlflow.MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return run if run.info.lifecycle_stage == "active" else None

    def _log_params(self, run_id: str, params: dict[str, str]) -> None:
        """Parameters cannot change: those of a run that is continued stay as they were."""
        whole = [self.mlflow.entities.Param(key, value) for key, value in sorted(params.items())]
        for first in range(0, len(whole), MAX_PARAMS):
            self.client.log_batch(run_id, params=whole[first : first + MAX_PARAMS])

    def log(self, row: dict[str, Any]) -> None:
        self._keep(scalars(row))
        if time.monotonic() >= self.next_try:
            self._send_epochs()

    def _keep(self, row: dict[str, float]) -> None:
        """Keep an epoch to be sent, unless the server has it: a run that was killed repeats those after its checkpoint."""
        if row["epoch"] > self.last:
            self.unsent.append((row, _now()))
            self.last = row["epoch"]

    def _send_epochs(self) -> None:
        try:
            while self.unsent:
                row, timestamp = self.unsent[0]
                self._log_metrics(row, int(row["epoch"]), timestamp)
                del self.unsent[0]
        except Exception as error:  # the training goes on, whatever it is
            self.next_try = time.monotonic() + RETRY_SECONDS
            if not self.reported:
                notify(f"MLflow took no epoch ({_reason(error)}); the training goes on, and it is sent again later.")
            self.reported = True

    def _log_metrics(self, values: dict[str, float], step: int, timestamp: int) -> None:
        entity = self.mlflow.entities.Metric
        metrics = [entity(_key(key), float(value), timestamp, step) for key, value in values.items()]
        self.client.log_batch(self.run_id, metrics=metrics)

    def finish(self, result: dict[str, Any]) -> None:
        if not self.run_id:
            return
        self._send_epochs()
        try:
            if result["status"] == "finished":
                self._log_outcome(result)
            self.client.set_terminated(self.run_id, STATUS[result["status"]])
        except Exception as error:
            notify(f"MLflow did not take the end of this run ({_reason(error)}); {self.folder} has all of it.")

    def _log_outcome(self, result: dict[str, Any]) -> None:
        """The final metrics at the last epoch, and the files of the run."""
        final = {f"final/{key}": value for key, value in scalars(result["metrics"]).items()}
        bayes = {f"bayes/{key}": value for key, value in scalars(result.get("bayes") or {}).items()}
        diagrams = reliability(result)
        ece = scalars({f"ece/{who}": error for who, (_, error) in diagrams.items()})
        tables = {"deferral": deferral(result), **{f"reliability_{who}": table for who, (table, _) in diagrams.items()}}
        took = scalars({key: result.get(key) for key in ("seconds", "peak_memory_mb", "parameters")})
        self._log_metrics({**final, **bayes, **ece, **took, **best_epoch(self.folder)}, int(self.last), _now())
        self.client.set_tag(self.run_id, "num_experts", str(len(result["experts"])))
        for name, table in tables.items():
            self.client.log_text(self.run_id, _csv(table), f"tables/{name}.csv")
        for file in ("config.yaml", "metrics.csv", "result.json", *(["model.safetensors"] if self.weights else [])):
            self.client.log_artifact(self.run_id, str(self.folder / file))


def _reason(error: BaseException) -> str:
    """Why a request failed, in a few words: MLflow and its libraries wrap what the network said several times."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ConnectionError | TimeoutError | socket.gaierror):
        cause = cause.__context__
    return first_line(error)[:200] if cause is None else str(cause.strerror or cause)


def _tags(name: str, config: dict[str, Any]) -> dict[str, str]:
    """What runs are searched and grouped by."""
    chosen, sweep = described(name, config), sweep_manifest()
    tags = {key: chosen[key] for key in ("dataset", "experts", "num_experts", "method", "backbone", "seed", "cell")}
    tags |= {"git_commit": environment()["git_commit"], "sweep": sweep[0].stem if sweep else None}
    return {key: str(value) for key, value in tags.items() if value is not None}


def _key(name: str) -> str:
    """The name of a parameter or metric in the characters that MLflow allows.

    >>> _key("rule.caps.Ann (night)")
    'rule.caps.Ann _night_'
    """
    return re.sub(r"[^\w./\- ]", "_", name)[:250]


def _text(value: Any) -> str:
    """A setting as a user would type it."""
    return value if isinstance(value, str) else json.dumps(value)


def _now() -> int:
    """Milliseconds, as MLflow counts the time."""
    return int(time.time() * 1000)


def _csv(table: Table) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.columns, *table.rows])
    return text.getvalue()
