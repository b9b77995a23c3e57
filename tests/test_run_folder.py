"""A run's folder: complete files or none, one process at a time, weights as safetensors; and the atomic write below it."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from safetensors import safe_open
from safetensors.torch import save

from l2d.atomic import TEMPORARY, atomic_write
from l2d.errors import UserError
from l2d.tensors import is_intact, pack
from l2d.tracking.run_folder import InUse, ReadOnlyFolder, RunFolder, in_use, read_result


def test_an_atomic_write_replaces_the_content(tmp_path):
    path = tmp_path / "file"
    for content in (b"old", b"new"):
        atomic_write(path, lambda file, content=content: file.write(content))
        assert path.read_bytes() == content
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_readers_see_the_old_content_until_the_new_is_complete(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def in_chunks(file):
        for _ in range(3):
            file.write(b"new")
            file.flush()
            assert path.read_bytes() == b"old"
            (temporary,) = tmp_path.glob(TEMPORARY)
            assert temporary != path

    atomic_write(path, in_chunks)
    assert path.read_bytes() == b"newnewnew"


@pytest.mark.parametrize("error", [ZeroDivisionError(), KeyboardInterrupt(), OSError(28, "No space left on device")])
def test_a_failed_write_leaves_the_old_content_and_no_temporary_file(tmp_path, error):
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def fail(file):
        file.write(b"half")
        raise error

    with pytest.raises(UserError if isinstance(error, OSError) else type(error)):
        atomic_write(path, fail)
    assert path.read_bytes() == b"old" and [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_file_that_the_system_refuses_is_a_user_error_with_the_hint_of_the_caller(tmp_path):
    def too_much(file):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))  # writing more raises EFBIG
        file.write(b"x" * 100_000)
        file.flush()

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with pytest.raises(UserError, match=rf"{tmp_path}/file .*File too large.*; set dataset\.cache\."):
            atomic_write(tmp_path / "file", too_much, hint="set dataset.cache")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())


def test_a_missing_folder_is_made_only_on_request(tmp_path):
    path = tmp_path / "a" / "b" / "file"
    with pytest.raises(UserError, match=str(path)):
        atomic_write(path, lambda file: file.write(b"x"))
    assert not list(tmp_path.iterdir())
    atomic_write(path, lambda file: file.write(b"x"), make_parents=True)
    assert path.read_bytes() == b"x"


def test_the_temporary_file_follows_no_symlink(tmp_path, monkeypatch):
    monkeypatch.setattr("secrets.token_hex", lambda _: "known")
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / TEMPORARY.replace("*", "file.known")).symlink_to(victim)
    with pytest.raises(UserError, match="file"):
        atomic_write(tmp_path / "file", lambda file: file.write(b"x"))
    assert victim.read_bytes() == b"precious" and not (tmp_path / "file").exists()


def test_a_written_file_has_the_permissions_that_umask_gives(tmp_path):
    (tmp_path / "plain").touch()
    atomic_write(tmp_path / "file", lambda file: file.write(b"x"))
    assert (tmp_path / "file").stat().st_mode == (tmp_path / "plain").stat().st_mode


@pytest.fixture
def folder(tmp_path, composed):
    """A started run's folder, held by this process."""
    with RunFolder(tmp_path / "run", composed()) as folder:
        folder.start({"seed": 0}, resumed=False)
        yield folder


def test_result_json_begins_with_its_schema_version(folder):
    folder.write_result({"status": "finished", "metrics": {}})
    content = json.loads((folder.path / "result.json").read_text())
    assert next(iter(content.items())) == ("schema_version", 2)
    assert content["status"] == "finished" and content["seed"] == 0


def test_an_epoch_is_appended_and_a_new_column_or_the_last_epoch_writes_the_whole_table(folder):
    table = folder.path / "metrics.csv"
    folder.add_epoch({"epoch": 1, "loss": 0.5, "shares": [1, 2]}, last=False)
    first = table.stat().st_ino
    folder.add_epoch({"epoch": 2, "loss": 0.25}, last=False)
    assert table.stat().st_ino == first and table.read_text() == "epoch,loss\n1,0.5\n2,0.25\n"
    folder.add_epoch({"epoch": 3, "loss": 0.1, "error": 7}, last=False)
    assert table.stat().st_ino != first and table.read_text() == "epoch,loss,error\n1,0.5,\n2,0.25,\n3,0.1,7\n"
    table.unlink()  # someone tidies up
    folder.add_epoch({"epoch": 4, "loss": 0.1}, last=False)
    assert len(table.read_text().splitlines()) == 5
    with table.open("a") as file:
        file.write("a half-written li")
    folder.add_epoch({"epoch": 5, "loss": 0.1}, last=True)
    assert table.read_text() == "epoch,loss,error\n1,0.5,\n2,0.25,\n3,0.1,7\n4,0.1,\n5,0.1,\n"


def test_nothing_is_appended_through_a_symlink(folder, tmp_path):
    (tmp_path / "document").write_text("precious")
    folder.add_epoch({"epoch": 1}, last=False)
    (folder.path / "metrics.csv").unlink()
    (folder.path / "metrics.csv").symlink_to(tmp_path / "document")
    with pytest.raises(UserError, match=r"metrics\.csv"):
        folder.add_epoch({"epoch": 2}, last=False)
    assert (tmp_path / "document").read_text() == "precious"


def attempt(path, cfg, **result):
    with RunFolder(path, cfg) as folder:
        folder.start({}, resumed=False)
        return folder.write_result(result) if result else read_result(path)


def test_attempts_and_their_seconds_are_counted_until_one_finishes(tmp_path, composed):
    """Times are wound back by hand: the first attempt lasted 100 s, the second was killed 50 s after it began."""
    path = tmp_path / "run"
    assert attempt(path, composed(), status="failed")["attempts"] == 1
    result = read_result(path)
    (path / "result.json").write_text(json.dumps(result | {"seconds": 100}))
    second = attempt(path, composed())
    assert second["attempts"] == 2 and 100 < second["seconds"] < 110
    begun = (path / "result.json").stat().st_mtime
    (path / "metrics.csv").touch()
    os.utime(path / "metrics.csv", (begun + 50, begun + 50))
    third = attempt(path, composed(), status="running")
    assert third["attempts"] == 3 and 150 < third["seconds"] < 170
    os.utime(path / "result.json", (begun + 1e6, begun + 1e6))  # the clock was set back since
    fourth = attempt(path, composed(), status="finished", metrics={})
    assert fourth["attempts"] == 4 and 150 < fourth["seconds"] < 180
    assert attempt(path, composed())["attempts"] == 1  # after a finished one it is counted anew
    assert attempt(path, composed("resume=never"))["attempts"] == 1


def weights():
    """Tied, transposed, channels-last, scalar, empty and half-precision tensors."""
    shared = torch.arange(6.0).reshape(2, 3)
    images = torch.arange(96.0).reshape(2, 3, 4, 4).to(memory_format=torch.channels_last)
    more = {"steps": torch.tensor(7), "empty": torch.zeros(0, 3), "half": torch.ones(3).bfloat16()}
    return {"a": shared, "tied": shared, "transposed": shared.T, "conv": images, **more}


METADATA = {"classes": '["cat", "dog"]', "note": 'ä "sha256":"' + "0" * 64, "a": "", "b": "1", "c": "2"}


def test_weights_are_written_as_safetensors(folder):
    tensors = weights()
    folder.write_weights(tensors, METADATA)
    with safe_open(folder.path / "model.safetensors", framework="pt") as file:
        metadata = file.metadata()
        assert metadata | METADATA == metadata
        assert metadata.keys() == METADATA.keys() | {"sha256", "fingerprint"}
        assert set(file.keys()) == set(tensors)
        for name, tensor in tensors.items():
            assert torch.equal(file.get_tensor(name), tensor) and file.get_tensor(name).dtype == tensor.dtype
    assert tensors["conv"].is_contiguous(memory_format=torch.channels_last), "the model itself is as it was"


def test_the_same_weights_give_the_same_file(folder):
    assert len({pack(weights(), METADATA) for _ in range(10)}) == 1


def test_damage_to_any_byte_of_the_weights_is_found():
    content = pack(weights(), METADATA)
    assert is_intact(content)
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= 1
        assert not is_intact(bytes(damaged)), position
    assert not any(is_intact(content[:length]) for length in range(len(content)))
    assert not is_intact(
        save(weights() | {"tied": torch.zeros(1), "conv": torch.zeros(1), "transposed": torch.ones(1)})
    )


@pytest.mark.parametrize("resumed", [False, True])
def test_a_new_attempt_removes_the_files_of_the_old_one_unless_it_continues_it(tmp_path, composed, resumed):
    path = tmp_path / "run"
    path.mkdir()
    unfinished = TEMPORARY.replace("*", "checkpoint.pt.0123")
    for name in ("metrics.csv", "model.pt", "model.safetensors", unfinished):
        (path / name).touch()
    with RunFolder(path, composed()) as folder:
        folder.start({}, resumed)
        kept = {entry.name for entry in path.iterdir() if not entry.name.startswith(".")}
    old = {"metrics.csv", "model.pt", "model.safetensors"} if resumed else set()
    assert kept == {"config.yaml", "result.json"} | old and not list(path.glob(TEMPORARY))


def test_a_folder_in_use_is_refused_with_process_and_host(tmp_path, composed):
    script = "import sys; from pathlib import Path; from omegaconf import OmegaConf\n"
    script += "from l2d.tracking.run_folder import RunFolder\n"
    script += "with RunFolder(Path(sys.argv[1]), OmegaConf.create(sys.stdin.readline())):\n"
    script += "    print('held', flush=True); sys.stdin.readline()"
    path = tmp_path / "run"
    assert not in_use(path)
    command = [sys.executable, "-c", script, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        other.stdin.write("{}\n")
        other.stdin.flush()
        assert other.stdout.readline() == "held\n"
        assert in_use(path)
        with pytest.raises(InUse, match=rf"{path} .*process {other.pid} on {os.uname().nodename}"):
            RunFolder(path, composed()).__enter__()
        other.kill()
    assert not in_use(path), "the lock dies with its process"
    with RunFolder(path, composed()):
        assert in_use(path)
    assert not path.exists(), "a run that never started leaves nothing"


def test_a_folder_that_cannot_be_locked_is_a_user_error(tmp_path, composed):
    (tmp_path / ".lock").mkdir()
    with pytest.raises(UserError, match=rf"{tmp_path}/.lock"):
        RunFolder(tmp_path, composed()).__enter__()


def test_a_read_only_folder_writes_nothing(tmp_path, composed):
    with ReadOnlyFolder(tmp_path / "run", composed()) as folder:
        folder.start({}, resumed=False)
        folder.add_epoch({"epoch": 1, "loss": 1.0}, last=False)
        folder.write_weights({"a": torch.zeros(1)}, {})
        folder.write_result({"status": "finished"})
    assert not Path(folder.path).exists()


def test_the_package_does_not_use_fcntl():
    sources = Path(__file__).parents[1].glob("l2d/**/*.py")
    assert not [path for path in sources if "fcntl" in path.read_text()]


def test_the_run_folder_imports_without_torch():
    script = "import sys, l2d.tracking.run_folder; sys.exit('torch' in sys.modules or 'safetensors' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_a_run_of_version_1_of_the_same_name_is_pointed_out(tmp_path, composed, capfd):
    older = tmp_path / "ce-specialist-J4-mlp-seed0-0123abcd"
    older.mkdir()
    (older / "result.json").write_text('{"status": "interrupted"}')
    with RunFolder(tmp_path / "ce-specialist-J4-mlp-seed0-89abcdef", composed()) as folder:
        folder.start({"experts": []}, resumed=False)
    assert str(older) in capfd.readouterr().err
    with pytest.raises(UserError, match="another version"):
        RunFolder(write_config(older, composed()), composed()).finished()


def write_config(folder, cfg):
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(cfg, resolve=True))
    return folder
