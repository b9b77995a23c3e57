"""python -m l2d.theory: the figures of docs/theory.md on the paper's theorems."""

from l2d.theory.survey import survey

for name, value in sorted(survey(cases=600, seed=0).items()):
    print(f"{name:<78} {value:.3g}")
