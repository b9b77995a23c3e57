"""A saved W&B workspace: the three metrics against the number of experts, by loss, averaged over seeds; curves; a table."""

import argparse
import json
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from l2d.errors import UserError, errors_as_sentences
from l2d.tracking.read import HEADLINE


def workspace(entity: str, project: str, dataset: str | None) -> Any:
    """The workspace of `wandb-workspaces`, not saved yet."""
    wr: Any = import_module("wandb_workspaces.reports.v2")
    ws: Any = import_module("wandb_workspaces.workspaces")
    averaged = {"groupby_aggfunc": "mean", "groupby_rangefunc": "stddev", "max_runs_to_show": 1000}
    by_loss = {"groupby": wr.Config("choices.loss"), **averaged}
    by_cell = {"groupby": wr.Config("choices.cell"), **averaged}
    against_experts = [
        wr.LinePlot(
            title=f"{metric} against the number of experts, mean over seeds",
            x="final/num_experts",
            y=[f"final/{metric}"],
            title_x="num_experts",
            title_y=f"{metric} (%)",
            **by_loss,
        )
        for metric in HEADLINE
    ]
    curves = [wr.LinePlot(title=metric, x="epoch", y=[metric], **by_cell) for metric in ("loss", *HEADLINE)]
    columns = [f"config:choices.value.{key}" for key in ("dataset", "experts", "loss", "num_experts", "seed")]
    return ws.Workspace(
        entity=entity,
        project=project,
        name="Learning to defer" + (f": {dataset}" if dataset else ""),
        sections=[
            ws.Section(name="Against the number of experts", panels=against_experts, is_open=True),
            ws.Section(name="Training curves, mean over seeds", panels=curves, is_open=True),
            ws.Section(name="Runs side by side", panels=[wr.RunComparer(diff_only="split")]),
        ],
        settings=ws.WorkspaceSettings(x_axis="epoch", max_runs=1000),
        runset_settings=ws.RunsetSettings(
            filters=[ws.Tags().isin([dataset])] if dataset else [],
            order=[ws.Ordering(ws.Summary("system_error"), ascending=True)],
            pinned_columns=[*columns, *(f"summary:{metric}" for metric in HEADLINE)],
        ),
    )


def specification(view: Any) -> dict[str, Any]:
    """The JSON that would be sent to W&B."""
    sent: dict[str, Any] = view._to_model().model_dump(mode="json", by_alias=True, exclude_none=True)
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/wandb_dashboard", description=__doc__)
    parser.add_argument("project", metavar="ENTITY/PROJECT")
    parser.add_argument("--dataset", help="only the runs on this dataset")
    parser.add_argument("--dry-run", action="store_true", help="print the specification, and send nothing")
    arguments = parser.parse_args()
    with errors_as_sentences():
        entity, _, project = arguments.project.partition("/")
        if not entity or not project or "/" in project:
            raise UserError(f"{arguments.project} is not of the form ENTITY/PROJECT, such as my-team/l2d.")
        if not find_spec("wandb_workspaces"):
            raise UserError("wandb-workspaces is not installed; pip install 'l2d[wandb-dashboard]' adds it.")
        view = workspace(entity, project, arguments.dataset)
        if arguments.dry_run:
            print(json.dumps(specification(view), indent=2))
            return
        try:
            view.save()
        except Exception as error:  # no key, no network, no such project: W&B raises many different classes
            reason = str(error).splitlines()[0].rstrip(".")
            raise UserError(f"W&B did not accept the dashboard ({reason}); --dry-run shows it without W&B.") from error
        print(view.url)


if __name__ == "__main__":
    main()
