"""The exact allocation of many cases to many experts: seconds, with the duality gap as proof that nothing is better."""

from collections.abc import Iterator

import torch
from measure import Row, main, seconds

from l2d.decisions import Cases, Deployment, allocate, assign, caps
from l2d.decisions.decide import Decision

CASES, EXPERTS = 10_000, 50


def drawn(alike: bool) -> Cases:
    """Beliefs in two classes and 50 experts; `alike`: experts that differ by noise alone, the hardest to divide cases among."""
    rng = torch.Generator().manual_seed(0)
    eta = 0.5 + 0.5 * torch.rand(CASES, 1, generator=rng, dtype=torch.float64)
    accuracy = torch.rand(1 if alike else CASES, EXPERTS, generator=rng, dtype=torch.float64).sqrt()
    accuracy = accuracy + (1e-4 * torch.randn(CASES, EXPERTS, generator=rng) if alike else 0)
    beliefs = torch.cat([eta, 1 - eta, accuracy], dim=1)
    answers = torch.zeros(CASES, EXPERTS, dtype=torch.int8)
    names = [f"expert_{j}" for j in range(EXPERTS)]
    return Cases(beliefs, answers, answers >= 0, beliefs, Deployment(names))


def measured(repeats: int) -> Iterator[Row]:
    for alike in (False, True):
        cases = drawn(alike)
        what = f"{CASES:,} cases x {EXPERTS} experts" + (", all alike" if alike else "")
        free, room = cases.decide(), torch.full((EXPERTS,), CASES / 200)
        gap = allocate(Decision(*free[:4]), room).gap
        note = f"duality gap {abs(gap):.1g}"
        fitted = Cases(cases.beliefs, cases.answers, cases.available, cases.order, cases.deployment, held_out=cases)
        times = [seconds(lambda fitted=fitted: caps(fitted, 0.5)) for _ in range(repeats)]
        yield Row(f"rule=caps, {what}", times, "<= 5", note, " s")
        times = [seconds(lambda cases=cases: assign(cases, CASES, CASES // 200)) for _ in range(repeats)]
        yield Row(f"rule=assign in one batch, {what}", times, "<= 10", note, " s")


if __name__ == "__main__":
    main(measured, __doc__)
