"""The main results of a block, in sentences."""

import pandas as pd

from l2d.report.blocks import Block
from l2d.report.layout import count_of
from l2d.report.methods import label

BOUNDS = [
    "Best achievable",
    "Any expert right",
]  # no system could be below the first, or a system of experts alone the other


def findings(block: Block) -> list[str]:
    """How the error of each method changes with more experts, and where a single expert beats every method."""
    done = block.cells[block.cells["n"] > 0]
    if block.in_rows:
        return _many_methods(block) + _single_expert(block, done)
    errors = {method: group.set_index("num_experts") for method, group in done.groupby("method")}
    sentences = []
    for method in block.methods:
        if method in errors and len(errors[method]) > 1:
            sentences.append(_adding_experts(method, errors[method], block.baselines.get(method), errors))
    return sentences + _single_expert(block, done)


def _many_methods(block: Block) -> list[str]:
    """Which methods do best and worst on average, how many beat what is no method, and what more experts change."""
    ranked = block.ranking[block.ranking["by"] == "system_error"]
    average = ranked[ranked["num_experts"].isna()].set_index("entry")
    means = average.loc[average["kind"] == "method", "mean"]
    if len(means) < 3:
        return []
    counts = sorted(map(int, set(ranked["num_experts"].dropna())))
    first, second, *_, last = (f"{label(str(method))} ({error:.2f})" for method, error in means.items())
    over = f"over {', '.join(map(str, counts[:-1]))} and {count_of(counts[-1])} " if len(counts) > 1 else ""
    sentences = [f"on average {over}the system error is lowest with {first}, then {second}, and highest with {last}."]
    references = average.loc[average["kind"] == "reference", "mean"].drop(BOUNDS, errors="ignore")
    below = [
        f"{(means.round(2) < round(error, 2)).sum()} below {_the(str(name))}"
        for name, error in references[::-1].items()
    ]
    if below:
        sentences.append(f"of these {len(means)} methods, on average, {', '.join(below)}.")
    if len(counts) > 1:
        at = ranked[ranked["entry"].isin(means.index)].pivot(index="entry", columns="num_experts", values="mean")
        change = (at[counts[-1]] - at[counts[0]]).round(2)
        low, high = (f"{change[method]:+.2f} ({label(str(method))})" for method in (change.idxmin(), change.idxmax()))
        sentences.append(
            f"from {counts[0]} to {count_of(counts[-1])} it rises with {(change > 0).sum()} of them and falls with "
            f"{(change < 0).sum()}; the change is between {low} and {high}."
        )
    return sentences


def _the(name: str) -> str:
    return f"the {name[0].lower()}{name[1:]}"


def _adding_experts(method: str, cells: pd.DataFrame, baseline: str | None, errors: dict[str, pd.DataFrame]) -> str:
    first, last = cells.iloc[0], cells.iloc[-1]
    used = [first, last]
    change = _change(first["system_error"], last["system_error"])
    text = f"from {cells.index[0]} to {count_of(cells.index[-1])} the system error of {label(method)} {change}"
    if baseline in errors and cells.index[-1] in errors[baseline].index:
        other = errors[baseline].loc[cells.index[-1]]
        used.append(other)
        text += f", which is {_compared(last['system_error'], other['system_error'])} that of {label(baseline)}"
    return text + (" (some seeds are missing)." if any(cell["state"] == "partial" for cell in used) else ".")


def _single_expert(block: Block, done: pd.DataFrame) -> list[str]:
    """Where always asking the best single expert has a lower error than every trained system."""
    sentences = []
    for line in block.reference.itertuples(index=False):
        here = done[done["num_experts"] == line.num_experts]
        expert_error = 100 - line.best_expert_accuracy
        if len(here) and round(expert_error, 2) < round(here["system_error"].min(), 2):
            best = here.loc[here["system_error"].idxmin()]
            sentences.append(
                f"with {count_of(line.num_experts)}, always asking the best single one has an error of {expert_error:.2f}, "
                f"below that of every trained system (the lowest is {best['system_error']:.2f}, {label(best['method'])})."
            )
    return sentences


def _change(first: float, last: float) -> str:
    step = round(last - first, 2)
    return f"{'rose' if step > 0 else 'fell'} by {abs(step):.2f} to {last:.2f}" if step else f"stayed at {last:.2f}"


def _compared(one: float, other: float) -> str:
    gap = round(one - other, 2)
    return f"{abs(gap):.2f} {'above' if gap > 0 else 'below'}" if gap else "equal to"
