"""l2d bench: run a protocol through `l2d train -m`, then write its tables."""

import sys
from argparse import RawDescriptionHelpFormatter
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

from l2d.atomic import atomic_write
from l2d.bench.protocol import Chosen, Protocol, folder_of, make_protocol
from l2d.bench.rounds import RECORD, read_record, write_record
from l2d.compose import add_config_dir, quoted
from l2d.errors import Arguments, UserError, errors_as_sentences, show

DESCRIPTION = """\
Compare methods on tasks whose best achievable error is known, under one protocol: the same network, data and steps for all;
learning rate and weight decay of each method chosen from the same grid on held-out data; other seeds are reported.

  l2d bench                                           # quick: 4 tasks, 6 methods, 2 seeds, some minutes
  l2d bench full
  l2d bench --add my_conf/loss/mine.yaml              # a loss or a system of your own in the same table
  l2d bench full --methods ce,picce_ce --tasks duplicates,shift
  l2d bench --data cifar10h=cifar10h.npz              # a task on real data
  l2d bench plan=true                                 # what would be run

What is finished is not run again, so the same line continues after a crash."""
PARALLEL = ["hydra/launcher=joblib", "hydra.launcher.n_jobs=-1"]
TABLES = {"cells": "tasks.csv", "methods": "methods.csv"}  # attribute of Scores -> file


def main(arguments: list[str] | None = None) -> None:
    """l2d bench [quick|full] ..."""
    parser = Arguments(
        "l2d bench",
        usage="l2d bench [quick|full] [--methods A,B] [--tasks A,B] [--add FILE] [--data TASK=PATH] [--seeds N] [--out DIR] [KEY=VALUE ...]",
        description=DESCRIPTION,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="quick|full, KEY=VALUE", help="the size; settings of every run")
    parser.add_argument("--methods", type=_names, metavar="A,B", help="losses, systems, or LOSS+SYSTEM")
    parser.add_argument("--tasks", type=_names, metavar="A,B", help="options of the group task")
    parser.add_argument("--add", type=Path, action="append", default=[], metavar="FILE", help="my_conf/loss/NAME.yaml")
    parser.add_argument("--data", action="append", default=[], metavar="TASK=PATH", help="a task on real data")
    parser.add_argument("--seeds", type=int, metavar="N", help="number of reported seeds")
    parser.add_argument("--out", type=Path, default=Path("report/bench"), help="where tables go (default: %(default)s)")
    add_config_dir(parser)
    options = parser.parse_intermixed_args(arguments)
    if options.seeds is not None and options.seeds < 1:
        parser.error(f"--seeds {options.seeds} must be at least 1")
    with errors_as_sentences():
        size, words = _size(options.words)
        chosen = Chosen(
            size, options.tasks, options.methods, _paths(options.data), options.add, options.seeds, options.config_dir
        )
        protocol = make_protocol(chosen)
        output = Path(_value(words, "output_dir") or "outputs/bench")
        config_dirs = [*options.config_dir, *map(folder_of, options.add)]
        if _value(words, "plan") == "true":
            with TemporaryDirectory() as scratch:
                run_protocol(protocol, Path(scratch, RECORD), output, words, config_dirs)
        else:
            run_protocol(protocol, output / RECORD, output, words, config_dirs)
            write_tables(output / RECORD, options.out)


def run_protocol(
    protocol: Protocol, record: Path, output: Path, words: list[str], config_dirs: list[str | Path]
) -> None:
    """Run what is not finished, as `l2d train -m` does; all processors at once unless `words` choose a launcher."""
    from l2d.cli import train

    write_record(record, protocol)
    own = [] if any(word.startswith("hydra/launcher") for word in words) else PARALLEL
    own = [*own, f"hydra.sweeper.record={quoted(str(record))}", *_default(words, "output_dir", output)]
    if not any(word.startswith("dataset.") for task in protocol.tasks.values() for word in task):
        own += _default(words, "trainer.device", "cpu")  # the embedded tasks are too small for a GPU
    if config_dirs:
        folders = ",".join(quoted(f"file://{Path(folder).absolute()}") for folder in config_dirs)
        own.append(f"hydra.searchpath=[{folders}]")
    train(["-m", "hydra/sweeper=bench", *own, *words])


def write_tables(record: Path, out: Path) -> None:
    """Print the tables of a benchmark that has come to its end, and write them with figures and a page to `out`."""
    from l2d.bench.scores import score

    protocol, rows = read_record(record)
    if not rows:
        raise UserError(f"{record} has no finished runs; see the failures above.")
    runs = pd.DataFrame(rows)
    scores = score(runs, protocol.anchor)

    from l2d.bench.figures import draw
    from l2d.bench.render import to_markdown, to_page, to_text
    from l2d.report.figures import save_figure
    from l2d.report.render import to_csv

    show(to_text(scores, protocol))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out={out} cannot be made a folder ({error.strerror}); choose another.") from error
    figures = {name: save_figure(figure, out / name) for name, figure in draw(scores, protocol.added).items()}
    texts = {"runs.csv": to_csv(runs), "benchmark.md": to_markdown(scores, protocol)}
    texts |= {file: to_csv(getattr(scores, attribute)) for attribute, file in TABLES.items()}
    texts["pairs.csv"] = to_csv(scores.comparison.of_all_pairs().rename_axis("method").reset_index())
    texts["index.html"] = to_page(scores, protocol, figures)
    for name, text in texts.items():
        _write(out / name, text)
    show(f"Page: {out / 'index.html'}")
    if (runs["error"].notna() & ~runs["refused"]).any():
        sys.exit(1)


def _write(path: Path, text: str) -> None:
    atomic_write(path, lambda file: file.write(text.encode()), durable=False)


def _size(words: list[str]) -> tuple[str, list[str]]:
    """quick or full, and the KEY=VALUE words."""
    sizes = [word for word in words if "=" not in word]
    unknown = [word for word in sizes if word not in ("quick", "full")]
    if unknown or len(sizes) > 1:
        raise UserError(
            f"{(unknown or sizes[1:])[0]} is no size of the benchmark; write quick or full, and settings as KEY=VALUE."
        )
    return (sizes or ["quick"])[0], [word for word in words if "=" in word]


def _paths(given: list[str]) -> dict[str, str]:
    paths = {}
    for text in given:
        task, equals, path = text.partition("=")
        if not equals or not Path(path).exists():
            raise UserError(f"--data {text}: write TASK=PATH with a path that exists.")
        paths[task] = path
    return paths


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _value(words: list[str], key: str) -> str | None:
    found = [word.partition("=")[2].strip("'\"") for word in words if word.partition("=")[0] == key]
    return found[-1] if found else None


def _default(words: list[str], key: str, value: object) -> list[str]:
    return [] if _value(words, key) is not None else [f"{key}={quoted(str(value))}"]
