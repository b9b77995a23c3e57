"""l2d data: checks the data and experts of a configuration before training. torch is imported only once a dataset is read."""

from argparse import RawDescriptionHelpFormatter
from pathlib import Path

from l2d.compose import add_config_dir, compose
from l2d.errors import Arguments, errors_as_sentences

DESCRIPTION = """\
Report on the data and experts of a configuration, without training: samples per split and class, image sizes,
groups, unusual and damaged files, the accuracy of every annotator and expert, missing answers, how far the experts
fail together, the memory that training will take; and draw a contact sheet of images with their labels and answers.

  l2d data check dataset=cifar100 dataset.root=data
  l2d data check dataset=micebone dataset.root=data experts.num=8 --sheet micebone.png

Exit code 0: training can start. Exit code 2: it would fail, for the reason printed last."""


def main(arguments: list[str] | None = None) -> None:
    """l2d data check KEY=VALUE ..."""
    parser = Arguments("l2d data", description=DESCRIPTION, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["check"])
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="as for l2d train: dataset=..., experts=...")
    parser.add_argument(
        "--sheet", type=Path, default=Path("contact_sheet.png"), metavar="PNG", help="default: %(default)s"
    )
    parser.add_argument(
        "--decode", type=int, metavar="N", help="of streamed files, open only N per split, evenly spread (default: all)"
    )
    add_config_dir(parser)
    options = parser.parse_intermixed_args(arguments)
    if options.decode is not None and options.decode < 1:
        parser.error("--decode must be at least 1")
    with errors_as_sentences():
        cfg = compose(options.overrides, options.config_dir)

        from l2d.inspect.report import check_data

        check_data(cfg, options.sheet, options.decode)
