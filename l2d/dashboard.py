"""l2d dashboard: a saved W&B workspace for a project and, where folders of runs are given, a W&B report with their tables."""

import json
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from l2d.errors import Arguments, UserError, errors_as_sentences, show
from l2d.tracking.read import HEADLINE

if TYPE_CHECKING:
    from l2d.report.blocks import Block

EACH_RUN = 1000  # more runs than a panel would show otherwise: 10


def main(arguments: list[str] | None = None) -> None:
    """l2d dashboard; without `arguments` those of the command line."""
    parser = Arguments(
        "l2d dashboard", description="A saved W&B workspace for a project, and a W&B report with tables."
    )
    parser.add_argument("project", metavar="ENTITY/PROJECT")
    parser.add_argument(
        "folders",
        nargs="*",
        metavar="DIR",
        help="what l2d train wrote to: also write a report with the tables of these runs",
    )
    parser.add_argument("--dataset", metavar="NAME", help="only the runs on this dataset")
    parser.add_argument("--dry-run", action="store_true", help="print what would be sent, as JSON, and send nothing")
    given = parser.parse_args(arguments)
    with errors_as_sentences():
        entity, _, project = given.project.partition("/")
        if not entity or not project or "/" in project:
            raise UserError(f"{given.project} is not of the form ENTITY/PROJECT, such as my-team/l2d.")
        if not find_spec("wandb_workspaces"):
            raise UserError("wandb-workspaces is not installed; pip install 'l2d[wandb-dashboard]' adds it.")
        views = {"workspace": workspace(entity, project, given.dataset)}
        if given.folders:
            views["report"] = report(entity, project, blocks_of(given.folders, given.dataset))
        if given.dry_run:
            show(json.dumps({name: specification(view) for name, view in views.items()}, indent=2))
            return
        for name, view in views.items():
            try:
                view.save()
            except Exception as error:  # no key, no network, no such project: W&B raises many different classes
                reason = str(error).splitlines()[0].rstrip(".")
                raise UserError(f"W&B did not accept the {name} ({reason}); --dry-run shows it without W&B.") from error
            show(view.url)


def workspace(entity: str, project: str, dataset: str | None) -> Any:
    """The workspace of `wandb-workspaces`, not saved yet."""
    wr, ws = _libraries()
    columns = [f"config:choices.value.{key}" for key in ("dataset", "experts", "method", "num_experts", "seed")]
    return ws.Workspace(
        entity=entity,
        project=project,
        name="Learning to defer" + (f": {dataset}" if dataset else ""),
        sections=[
            ws.Section(name="Against the number of experts", panels=against_experts(), is_open=True),
            ws.Section(name="Training curves, mean over seeds", panels=curves(), is_open=True),
            ws.Section(name="Runs side by side", panels=[wr.RunComparer(diff_only="split")]),
        ],
        settings=ws.WorkspaceSettings(x_axis="epoch", max_runs=EACH_RUN),
        runset_settings=ws.RunsetSettings(
            filters=_tagged(dataset) if dataset else "",
            order=[ws.Ordering(ws.Summary("system_error"), ascending=True)],
            pinned_columns=[*columns, *(f"summary:{metric}" for metric in HEADLINE)],
        ),
    )


def report(entity: str, project: str, blocks: "list[Block]") -> Any:
    """The report of `wandb-workspaces`, not saved yet: for each block its tables and findings, and panels with its runs."""
    from l2d.report.findings import findings
    from l2d.report.render import block_to_markdown, md

    wr, _ = _libraries()
    parts = []
    for block in blocks:
        said = [f"- {md(sentence)}" for sentence in findings(block)]
        dataset, experts = block.runs.iloc[0][["dataset", "experts"]]
        runs = wr.Runset(name=block.title, filters=_tagged(dataset, experts))  # of the report's own project
        parts += [
            wr.MarkdownBlock(text="\n\n".join([block_to_markdown(block), "\n".join(said)])),
            wr.PanelGrid(runsets=[runs], panels=[*against_experts(), *curves()]),
        ]
    return wr.Report(entity=entity, project=project, title="Learning to defer", blocks=parts, width="fluid")


def blocks_of(folders: list[str], dataset: str | None) -> "list[Block]":
    """The blocks that `l2d report` makes of the runs below the folders, only those on one dataset if it is given."""
    from l2d.report import load_runs
    from l2d.report.blocks import make_blocks

    runs = load_runs(*folders)
    if dataset:
        there = sorted(set(runs["dataset"]))
        runs = runs[runs["dataset"] == dataset]
        if runs.empty:
            raise UserError(f"--dataset {dataset} has no runs in {', '.join(folders)}; there are {', '.join(there)}.")
    return make_blocks(runs)


def against_experts() -> list[Any]:
    """A panel per headline metric over the number of experts, a line per method, mean and standard deviation over seeds."""
    wr, _ = _libraries()
    return [
        wr.LinePlot(
            title=f"{metric} against the number of experts, mean over seeds",
            x="final/num_experts",
            y=[f"final/{metric}"],
            title_x="num_experts",
            title_y=f"{metric} (%)",
            groupby=wr.Config("choices.method"),
            **_averaged(),
        )
        for metric in HEADLINE
    ]


def curves() -> list[Any]:
    """A panel per curve over the epochs, a line per cell, mean and standard deviation over seeds."""
    wr, _ = _libraries()
    by_cell = {"groupby": wr.Config("choices.cell"), **_averaged()}
    return [wr.LinePlot(title=metric, x="epoch", y=[metric], **by_cell) for metric in ("loss", *HEADLINE)]


def specification(view: Any) -> dict[str, Any]:
    """The JSON that would be sent to W&B."""
    content: dict[str, Any] = view._to_model().model_dump(mode="json", by_alias=True, exclude_none=True)
    return content


def _tagged(*tags: str) -> Any:
    """The filter of runs that have all these tags."""
    _, ws = _libraries()
    return ws.And(*(ws.Tags().isin([tag]) for tag in tags))


def _averaged() -> dict[str, Any]:
    return {"groupby_aggfunc": "mean", "groupby_rangefunc": "stddev", "max_runs_to_show": EACH_RUN}


def _libraries() -> tuple[Any, Any]:
    """The modules for reports and for workspaces; an extra brings them."""
    return import_module("wandb_workspaces.reports.v2"), import_module("wandb_workspaces.workspaces")
