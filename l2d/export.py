"""l2d export: the system of a finished run as a file that is used without l2d."""

from argparse import RawDescriptionHelpFormatter
from pathlib import Path

from omegaconf import DictConfig

from l2d.cli import COMMANDS
from l2d.compose import add_config_dir
from l2d.errors import Arguments, UserError, errors_as_sentences, notify, show
from l2d.identity import register_resolvers
from l2d.inference.write import Extra, check_output
from l2d.tracking.trained import Run, run_with

DESCRIPTION = """\
Write the system of a finished run to one file, which is used without l2d: ONNX (.onnx) or a program of torch.export (.pt2).

  l2d export outputs/folder/RUN
  l2d export RUN --out model.onnx --check photos
  l2d export RUN --out model.pt2 rule=budget rule.defer_at_most=10 experts.costs=0.05

The file takes `inputs` and gives `scores`, `beliefs` and `decision` (k: answer class k; K + j: ask expert j); names, costs, the
rule and how inputs are prepared are in its metadata. It is compared with the system on random inputs, on those of --check
(named as for `l2d predict`) and on the test split of the embedded data, and is there only if both say the same."""
ENDINGS = {".onnx": Extra("onnx", ("onnx", "onnxruntime", "onnxscript")), ".pt2": None}
MOST_BATCH = 1024
OPSETS = range(18, 24)  # what torch's exporter writes, and what it converts that to


def main(arguments: list[str] | None = None) -> None:
    """l2d export RUN KEY=VALUE ..."""
    parser = Arguments(
        "l2d export",
        usage="l2d export [--config-dir DIR] RUN [--out FILE] [--opset N] [--batch N] [--check INPUT] [KEY=VALUE ...]",
        description=DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", metavar="RUN", help="the folder of a finished run")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="rule=..., experts.costs=..., trust=true")
    parser.add_argument("--out", type=Path, metavar="FILE", help=".onnx or .pt2; else model.onnx in the run's folder")
    parser.add_argument("--opset", type=int, default=OPSETS[0], metavar="N", help="of an .onnx file; else 18")
    parser.add_argument("--batch", metavar="N", default="dynamic", help="inputs at a time; else any number (dynamic)")
    parser.add_argument(
        "--check", action="append", default=[], metavar="INPUT", help="inputs to check with; repeatable"
    )
    add_config_dir(parser)
    options = parser.parse_intermixed_args(arguments)
    with errors_as_sentences():
        register_resolvers()
        if options.opset not in OPSETS:
            raise UserError(f"--opset {options.opset} must be from {OPSETS[0]} to {OPSETS[-1]}.")
        if options.batch != "dynamic" and not (options.batch.isdecimal() and 1 <= int(options.batch) <= MOST_BATCH):
            raise UserError(f"--batch {options.batch} must be dynamic, or a number from 1 to {MOST_BATCH}.")
        run, cfg = run_with(options.run, options.settings, options.config_dir, COMMANDS["export"].settings)
        out = options.out or run.folder / "model.onnx"
        check_output(out, ENDINGS)
        batch = None if options.batch == "dynamic" else int(options.batch)
        export_run(run, cfg, out, options.opset, batch, options.check)


def export_run(run: Run, cfg: DictConfig, out: Path, opset: int, batch: int | None, check: list[str]) -> None:
    """Write the system to a file, and say how close both are."""
    from l2d.inference.export import Choices, export_system
    from l2d.inference.system import TrainedSystem
    from l2d.place import Place

    cfg.trainer.compile = False
    trained = TrainedSystem(run, cfg, Place())  # on the CPU, in float32
    checked = export_system(trained, trained.decider(cfg), out, Choices(opset, batch), check)
    kind = f"opset {opset}, " if out.suffix.lower() == ".onnx" else ""
    show(f"{out}: {out.stat().st_size / 1e6:.2f} MB, {kind}batch {batch or 'dynamic'}")
    for name, found in checked.items():
        ties = f", {found.ties} decisions differ by rounding" if found.ties else ", decisions equal"
        within = f"scores within {found.scores:.1e}, beliefs within {found.beliefs:.1e}{ties}"
        show(f"checked on {found.inputs} {name} inputs: {within}")
    if "real" not in checked:
        notify("No real inputs were there to check the file with; name some with --check.")


if __name__ == "__main__":
    main()
