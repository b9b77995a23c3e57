"""Report: run folders -> a tidy frame, tables, figures, paired statistics and a page. Nothing here needs torch."""

from l2d.report.load import load_runs
from l2d.report.statistics import paired_differences
from l2d.report.tables import summarize

__all__ = ["load_runs", "paired_differences", "summarize"]
