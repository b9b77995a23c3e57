"""One block of a report: a dataset, an expert pattern and a setting, with everything that is shown about it."""

from dataclasses import dataclass
from functools import cached_property

import pandas as pd

from l2d.report.load import BLOCK
from l2d.report.methods import baselines, in_rows, methods_of
from l2d.report.metrics import ShownMetric, shown_metrics
from l2d.report.ranking import rank_runs
from l2d.report.statistics import paired_differences
from l2d.report.tables import reference_table, summarize


@dataclass(frozen=True)
class Block:
    title: str
    runs: pd.DataFrame
    cells: pd.DataFrame  # `summarize` of the runs
    reference: pd.DataFrame  # `reference_table` of the runs
    paired: pd.DataFrame  # `paired_differences` of the runs
    ranking: pd.DataFrame  # `rank_runs` of the runs
    baselines: dict[str, str]  # method -> the one it is compared with

    @cached_property
    def metrics(self) -> list[ShownMetric]:
        return shown_metrics(self.runs)

    @cached_property
    def methods(self) -> list[str]:
        return methods_of(self.cells)

    @cached_property
    def in_rows(self) -> bool:
        """Whether the methods are rows of tables, because they are too many for columns."""
        return in_rows(self.methods)

    @property
    def finished(self) -> bool:
        return bool(self.cells["n"].any())


def make_blocks(runs: pd.DataFrame, baseline: str | None = None) -> list[Block]:
    """The blocks of the runs, in the order of their names."""
    frames = (summarize(runs), reference_table(runs), paired_differences(runs, baseline), rank_runs(runs))
    blocks = []
    for key, group in runs.groupby(BLOCK):
        dataset, experts, setting = key
        title = f"{dataset}, {experts} experts" + (f" ({setting})" if setting else "")
        cells, reference, paired, ranking = (frame[(frame[BLOCK] == list(key)).all(axis=1)] for frame in frames)
        blocks.append(Block(title, group, cells, reference, paired, ranking, baselines(group, baseline)))
    return blocks
