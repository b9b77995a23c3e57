"""A decision rule of your own, applied to a finished run: nothing is trained again.

    python examples/decision_rule.py [FOLDER]

The rule: some answers have to be signed off. Where the system would answer one of these classes itself, the best expert is asked
instead. It is one function, `sign_off`, and one file, conf/rule/sign_off.yaml, that names it.
"""

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import torch

from l2d import Cases, Decision, needs
from l2d.compose import compose
from l2d.train import run, run_folder

HERE = Path(__file__).resolve().parent
SIGNED = ["class_0", "class_1"]


@needs("top", casewise=True)  # it trusts what is believed of the best expert, and decides about each case alone
def sign_off(cases: Cases, classes: list[str]) -> Decision:
    """The plain decision, costs and all, except that an answer of these `classes` is left to the best expert who is there."""
    decision = cases.decide()
    listed = torch.tensor([name in classes for name in cases.deployment.class_names])  # [K]
    must = listed[decision.predicted] & cases.available.any(dim=1)  # [N]
    best = torch.nn.functional.one_hot(decision.expert, cases.num_experts).bool()  # [N, J]
    return decision._replace(asked=decision.asked | (best & must[:, None]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("outputs/examples/decision_rule"))
    out = parser.parse_args().folder.resolve()

    # A run as any other: l2d train loss=decoupled experts.num=4 ...
    cfg = compose(["loss=decoupled", "experts.num=4", "dataset.num_train=4000", "dataset.num_test=2000"])
    cfg.verbose = False
    cfg.output_dir = str(out / "runs")
    before = run(cfg)

    # The same run under the rule, from the scores that it kept: neither its model nor its data are read. The command is started in
    # the folder of this file, so that it finds the function; --samples also writes what was done with each sample.
    rule = ["--config-dir", "conf", "rule=sign_off", f"rule.classes=[{','.join(SIGNED)}]"]
    words = ["evaluate", str(run_folder(cfg)), *rule, "--samples", f"out={out}/sign_off.json"]
    print(f"\n$ {shlex.join(['l2d', *words])}", flush=True)
    subprocess.run([sys.executable, "-m", "l2d", *words], cwd=HERE, check=True)

    result = json.loads((out / "sign_off.json").read_text())
    metrics = pd.DataFrame({"best": before, "sign_off": result["metrics"]}).T
    print("\n", metrics[["system_error", "coverage", "questions_asked"]].astype(float).round(2).to_string(), sep="")
    table = out / result["samples"]
    samples = pd.read_parquet(table) if table.suffix == ".parquet" else pd.read_csv(table)
    signed = samples[samples["predicted"].isin(SIGNED)]
    alone, now = (signed["gain"] <= 0).sum(), (~signed["asked"]).sum()
    print(
        f"\nIt would say {' or '.join(SIGNED)} in {len(signed)} cases, in {alone} of them without asking; under the rule in {now}."
    )


if __name__ == "__main__":
    main()
