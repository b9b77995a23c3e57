"""Nothing is lost: a run that is killed, told to stop, or finds its checkpoint damaged ends as if nothing had happened."""

import csv
import errno
import json
import os
import pickle
import random
import resource
import signal
import subprocess
import time
from collections import Counter
from math import cos, pi
from pathlib import Path

import pytest
from children import start, wait
from safetensors.torch import load_file

from l2d.atomic import TEMPORARY
from l2d.errors import UserError
from l2d.train import run
from l2d.training.checkpoint import NAMES, Checkpoints

# A model with dropout and batch norm, and experts redrawn every epoch: all that can differ after a resume. Its steps are slow
# while there is a file named slow, so that a run is not over before a test has looked at it twice.
NET = """
import os, time, torch
class Slow(torch.nn.Module):
    def forward(self, x):
        time.sleep(0.02 * os.path.exists("slow"))
        return x
def net(num_outputs, image_shape):
    return torch.nn.Sequential(
        Slow(), torch.nn.Flatten(), torch.nn.Linear(192, 24), torch.nn.BatchNorm1d(24), torch.nn.ReLU(), torch.nn.Dropout(0.3),
        torch.nn.Linear(24, num_outputs))
"""
SETTING = (
    "backbone._target_=dropout_net.net", "~backbone.hidden", "~backbone.layers", "experts.resample=per_epoch",
    "dataset.num_train=400", "dataset.num_test=200", "trainer.batch_size=50", "trainer.eval_every=2", "trainer.epochs=40",
)  # fmt: skip
EVERY_STEP = "trainer.checkpoint_minutes=0"


def outcome(root: Path, name: str = "*") -> tuple:
    """Weights, metrics.csv and result.json of the only run below (of this name), without what is a matter of time."""
    (folder,) = (path.parent for path in root.glob(f"*/{name}/result.json"))
    result = json.loads((folder / "result.json").read_text())
    assert result["status"] == "finished", result
    table = csv.DictReader((folder / "metrics.csv").read_text().splitlines())
    rows = [{k: v for k, v in row.items() if k != "images_per_second"} for row in table]
    weights = {name: value.numpy().tobytes() for name, value in load_file(folder / "model.safetensors").items()}
    return weights, rows, {k: v for k, v in result.items() if k not in ("seconds", "attempts", "peak_memory_mb")}


@pytest.fixture
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("dropout_net.py").write_text(NET)
    return tmp_path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """What the run ends with when nothing happens to it."""
    folder = tmp_path_factory.mktemp("undisturbed")
    before = Path.cwd()
    os.chdir(folder)
    Path("dropout_net.py").write_text(NET)
    try:
        assert wait(start(*SETTING)) == 0, Path("output.txt").read_text()
    finally:
        os.chdir(before)
    return outcome(folder / "outputs")


def run_folder() -> Path | None:
    return next((path.parent for path in Path("outputs").glob("*/*/config.yaml")), None)


def progress() -> int:
    """Changes with every checkpoint."""
    folder = run_folder()
    try:
        return (folder / NAMES[0]).stat().st_mtime_ns if folder else 0
    except OSError:
        return 0


def start_and_wait_for_checkpoints(count: int, *setting: str):
    Path("slow").touch()
    child, seen, last = start(*(setting or SETTING), EVERY_STEP), 0, progress()
    deadline = time.monotonic() + 60
    while seen < count and time.monotonic() < deadline and child.is_alive():
        now = progress()
        seen, last = seen + (now != last), now
        time.sleep(0.005)
    Path("slow").unlink()
    return child


def kill_25_times(*setting: str) -> None:
    """And then let it finish."""
    rng = random.Random(0)
    for kill in range(25):
        child = start_and_wait_for_checkpoints(1 + kill % 2, *setting)
        time.sleep(rng.uniform(0, 0.02))  # anywhere in a step, or in the writing of the next checkpoint
        os.kill(child.pid, signal.SIGKILL)
        assert wait(child) == -signal.SIGKILL, f"the run was over before kill {kill}: {Path('output.txt').read_text()}"
    assert wait(start(*setting, EVERY_STEP)) == 0, Path("output.txt").read_text()


@pytest.mark.slow
def test_a_run_killed_25_times_ends_bit_identical(workplace, undisturbed):
    kill_25_times(*SETTING)
    assert outcome(Path("outputs")) == undisturbed
    assert json.loads((run_folder() / "result.json").read_text())["attempts"] == 26
    assert not [name for name in NAMES if (run_folder() / name).exists()]


# Every epoch a stage of its own, each with an optimiser and frozen parts of its own: kills fall on all sides of a boundary.
STAGES = """
from l2d.systems import ScoreSystem, Stage
class Alternating(ScoreSystem):
    def stages(self):
        body, head = list(self.backbone[:-1].parameters()), list(self.backbone[-1].parameters())
        parts = [("all", body + head), ("head", head), ("body", body)] * 5
        return [Stage(f"{name}_{i}", part, self.taught, epochs=2 + i % 2) for i, (name, part) in enumerate(parts)]
"""


@pytest.mark.slow
def test_a_run_of_many_stages_killed_25_times_ends_bit_identical(workplace):
    Path("stages.py").write_text(STAGES)
    setting = (*SETTING, "system._target_=stages.Alternating", "optim.momentum=0.8")
    assert wait(start(*setting, "output_dir=calm")) == 0, Path("output.txt").read_text()
    kill_25_times(*setting)
    weights, rows, result = outcome(Path("outputs"))
    assert (weights, rows, result) == outcome(Path("calm"))
    stages = [row["stage"] for row in rows]
    assert len(rows) == 37 and len(set(stages)) == 15 and stages[:3] == ["all_0", "all_0", "head_1"]


@pytest.mark.slow
def test_a_run_of_two_stages_killed_in_each_of_them_ends_bit_identical(workplace):
    """Folds, and a router that needs to know which sample is in which of them."""
    setting = (*SETTING, "system=two_stage", "trainer.epochs=6", "trainer.eval_every=0")
    assert wait(start(*setting, "output_dir=calm")) == 0, Path("output.txt").read_text()
    for stage in ("fold_1", "fold_2", "router"):
        child, deadline = start(*setting, EVERY_STEP), time.monotonic() + 60
        while child.is_alive() and time.monotonic() < deadline:
            folder = run_folder()
            if folder and (folder / "metrics.csv").exists() and f",{stage}," in (folder / "metrics.csv").read_text():
                break  # one of its six epochs is over
            time.sleep(0.002)
        os.kill(child.pid, signal.SIGKILL)
        assert wait(child) == -signal.SIGKILL, Path("output.txt").read_text()
    assert wait(start(*setting)) == 0, Path("output.txt").read_text()
    weights, rows, result = outcome(Path("outputs"))
    assert (weights, rows, result) == outcome(Path("calm"))
    assert [row["stage"] for row in rows[::6]] == ["classifier", "fold_1", "fold_2", "router"]


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1])
def test_a_signal_ends_the_run_with_a_checkpoint_and_the_next_start_continues(workplace, undisturbed, signum):
    child = start_and_wait_for_checkpoints(3)
    os.kill(child.pid, signum)
    assert wait(child) == 128 + signum
    assert json.loads((run_folder() / "result.json").read_text())["status"] == "interrupted"
    assert wait(start(*SETTING)) == 0
    assert outcome(Path("outputs")) == undisturbed


@pytest.fixture
def interrupted(workplace):
    """A run that was stopped half-way, with two checkpoints: its folder."""
    child = start_and_wait_for_checkpoints(4)
    os.kill(child.pid, signal.SIGTERM)
    wait(child)
    folder = run_folder()
    assert all((folder / name).exists() for name in NAMES)
    return folder


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def other_setting(path):
    Checkpoints(path.parent / "elsewhere", "00000000").save({})
    os.replace(path.parent / "elsewhere" / NAMES[0], path)


def runs_code(path):
    class Evil:
        def __reduce__(self):
            return (Path("it-ran").touch, ())

    import hashlib

    content = pickle.dumps(Evil())
    path.write_bytes(b"l2d checkpoint 2\n" + hashlib.sha256(content).digest() + content)


def of_version_1(path):
    path.write_bytes(b"l2d checkpoint 1\n" + path.read_bytes()[17:])


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage", [truncate, flip, lambda path: path.write_bytes(b""), other_setting, runs_code, of_version_1]
)
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(interrupted, undisturbed, damage):
    (interrupted / "elsewhere").mkdir()
    damage(interrupted / NAMES[0])
    assert wait(start(*SETTING)) == 0
    assert str(interrupted / NAMES[0]) in Path("output.txt").read_text()
    assert outcome(Path("outputs")) == undisturbed
    assert not Path("it-ran").exists()


@pytest.mark.slow
def test_if_all_checkpoints_are_damaged_the_run_fails(interrupted, undisturbed):
    for name in NAMES:
        truncate(interrupted / name)
    assert wait(start(*SETTING)) == 2
    said = Path("output.txt").read_text()
    assert all(str(interrupted / name) in said for name in NAMES) and "resume=never" in said
    assert wait(start(*SETTING, "resume=never")) == 0
    assert outcome(Path("outputs")) == undisturbed


@pytest.mark.slow
def test_resume_takes_the_path_of_a_checkpoint_and_refuses_that_of_another_setting(interrupted, undisturbed):
    os.rename(interrupted / NAMES[1], "mine.pt")
    (interrupted / NAMES[0]).unlink()
    assert wait(start(*SETTING, "seed=5", "resume=mine.pt")) == 2
    assert "another setting" in Path("output.txt").read_text()
    assert wait(start(*SETTING, "resume=nowhere.pt")) == 2
    assert wait(start(*SETTING, "resume=mine.pt")) == 0
    assert outcome(Path("outputs")) == undisturbed


def test_a_checkpoint_that_would_run_code_is_refused_without_running_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    runs_code(tmp_path / "evil.pt")
    with pytest.raises(UserError, match=r"evil\.pt holds more than tensors"):
        Checkpoints(tmp_path, "x").load(tmp_path / "evil.pt")
    assert not Path("it-ran").exists()
    assert Checkpoints(tmp_path, "x").latest() is None


@pytest.mark.slow
def test_a_file_that_cannot_be_written_ends_in_a_sentence_and_what_was_there_stays_whole(interrupted, undisturbed):
    """A limit on the size of files stands for a full disk: the next checkpoint does not fit."""
    before = {name: (interrupted / name).read_bytes() for name in NAMES}
    small = len(before[NAMES[0]]) - 1000
    assert wait(start(*SETTING, EVERY_STEP, limit=(resource.RLIMIT_FSIZE, (small, small)))) == 2
    said = Path("output.txt").read_text()
    assert os.strerror(errno.EFBIG) in said and "Traceback" not in said
    assert {name: (interrupted / name).read_bytes() for name in NAMES} == before
    assert not list(interrupted.glob(TEMPORARY))
    assert wait(start(*SETTING)) == 0
    assert outcome(Path("outputs")) == undisturbed


@pytest.mark.slow
def test_a_full_disk_and_a_read_only_one_end_in_a_sentence(workplace):
    disk = workplace / "disk"
    disk.mkdir()
    mount = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "none", str(disk)], capture_output=True)
    if mount.returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        assert wait(start(*SETTING, EVERY_STEP, f"output_dir={disk}")) == 2
        said = Path("output.txt").read_text()
        assert os.strerror(errno.ENOSPC) in said and "Traceback" not in said
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert wait(start(*SETTING, f"output_dir={disk}", "seed=1")) == 2
        said = Path("output.txt").read_text()
        assert os.strerror(errno.EROFS) in said and "Traceback" not in said
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.slow
def test_a_limit_on_open_files_ends_in_a_sentence(workplace):
    assert wait(start(*SETTING, limit=(resource.RLIMIT_NOFILE, (5, 5)))) == 2
    said = Path("output.txt").read_text()
    assert os.strerror(errno.EMFILE) in said and "Traceback" not in said


BAD_LOSS = """
import torch
from l2d.losses import DeferralLoss
class Loss(DeferralLoss):
    calls = 0
    def forward(self, *batch):
        Loss.calls += 1
        return super().forward(*batch) * (float("{value}") if Loss.calls in {when} else 1.0)
"""


# oneDNN reads its instruction set once, and not every machine runs its newest one.
OLDER_BF16 = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "precision"), [("nan", "float32"), ("inf", "float32"), ("nan", "bf16"), ("inf", "fp16")]
)
def test_a_nonfinite_loss_stops_the_run_at_that_step(workplace, value, precision):
    Path("bad_loss.py").write_text(BAD_LOSS.format(value=value, when="(11,)"))  # 8 steps an epoch: epoch 2, step 3
    bad = ("loss._target_=bad_loss.Loss", f"trainer.precision={precision}")
    assert wait(start(*SETTING, *bad, "trainer.checkpoint_epochs=1", **OLDER_BF16)) == 2
    said = Path("output.txt").read_text()
    assert "epoch 2, step 3" in said and NAMES[0] in said
    rate = 0.1 * 0.5 * (1 + cos(pi * 10 / (40 * 8)))  # 10 steps are done, of 40 epochs of 8
    assert f"learning rate {rate:.3g}" in said
    result = json.loads((run_folder() / "result.json").read_text())
    assert result["status"] == "failed" and "not finite" in result["error"]


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["float32", "bf16", "fp16"])
def test_nonfinite_steps_are_skipped_up_to_a_limit(workplace, precision):
    Path("bad_loss.py").write_text(BAD_LOSS.format(value="nan", when="(11, 20, 21)"))
    bad = (*SETTING, "loss._target_=bad_loss.Loss", f"trainer.precision={precision}")
    assert wait(start(*bad, "trainer.skip_nonfinite=3", **OLDER_BF16)) == 0, Path("output.txt").read_text()
    weights = load_file(run_folder() / "model.safetensors")
    assert all(value.isfinite().all() for value in weights.values())
    assert wait(start(*bad, "trainer.skip_nonfinite=2", **OLDER_BF16)) == 2
    assert "epoch 3, step 5" in Path("output.txt").read_text()


@pytest.mark.slow
def test_gradients_that_overflow_fp16_are_left_out_by_the_scaler_and_the_run_goes_on(workplace):
    """The loss is finite, but not times the scaler's first factor, 65536: three steps are left out, the factor is lowered."""
    Path("bad_loss.py").write_text(BAD_LOSS.format(value="1e34", when="range(3, 6)"))
    assert wait(start(*SETTING, "loss._target_=bad_loss.Loss", "trainer.precision=fp16")) == 0, Path(
        "output.txt"
    ).read_text()
    assert all(v.isfinite().all() for v in load_file(run_folder() / "model.safetensors").values())


SLOW_DATA = """
import time
from pathlib import Path
from l2d.data import synthetic
def slow(**settings):
    Path("loading").touch()
    time.sleep(60)
    return synthetic(**settings)
"""


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_before_the_first_step_ends_the_run_at_once_and_leaves_nothing(workplace, signum):
    Path("slow_data.py").write_text(SLOW_DATA)
    child = start("dataset._target_=slow_data.slow")
    while not Path("loading").exists():
        assert child.is_alive()
        time.sleep(0.01)
    os.kill(child.pid, signum)
    assert wait(child) == 128 + signum
    assert Path("output.txt").read_text() == "l2d: Stopped before the first step; there is nothing to keep.\n"
    assert not Path("outputs").exists()


LATE_SIGNAL = """
import os, signal
def full(**given):
    os.kill(os.getpid(), signal.SIGTERM)
    return {}
"""


@pytest.mark.slow
def test_a_signal_in_the_last_evaluation_waits_for_the_result(workplace):
    Path("late.py").write_text(LATE_SIGNAL)
    assert wait(start(*SETTING, "evaluation=full", "evaluation._target_=late.full")) == 128 + signal.SIGTERM
    assert json.loads((run_folder() / "result.json").read_text())["status"] == "finished"


@pytest.mark.slow
def test_an_evaluation_that_cannot_be_called_is_refused_before_the_training(workplace):
    assert wait(start(*SETTING, "evaluation=full", "evaluation._target_=late.full")) == 2
    assert "evaluation._target_=late.full cannot be imported" in Path("output.txt").read_text()
    assert wait(start(*SETTING, "evaluation=full", "+evaluation.colour=red")) == 2
    assert "has no setting colour" in Path("output.txt").read_text()
    assert not Path("outputs").exists()


def test_a_finished_run_is_on_the_disk(tmp_path, monkeypatch, composed):
    """Its checkpoints are gone by then: what is left must have been forced there, the table of epochs too."""
    synced, fsync = Counter(), os.fsync

    def noted(descriptor):
        synced[Path(os.readlink(f"/proc/self/fd/{descriptor}")).name.split(".")[1]] += 1  # .NAME.SUFFIX.PID.tmp
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    small = ("dataset.num_train=64", "dataset.num_test=32", "trainer.epochs=3", "trainer.device=cpu")
    run(composed(*small, f"output_dir={tmp_path}", "verbose=false"))
    assert synced == {"config": 1, "result": 2, "metrics": 1, "model": 1, "outcome": 1}
