"""examples/serve.py: an exported system behind HTTP decides what `l2d predict` does, without torch and without l2d."""

import io
import json
import runpy
import subprocess
import sys
import urllib.error
import urllib.request
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import l2d
from l2d.cli import main

for package in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(package, reason="the extra onnx is not installed")

SCRIPT = Path(__file__).parents[1] / "examples" / "serve.py"
WITHOUT_TORCH = """
import runpy, sys
sys.modules["torch"] = sys.modules["l2d"] = None  # importing them fails
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@contextmanager
def served(model: Path):
    """Serve a file on a free port; `ask(content)` posts an input and returns (status, answer)."""
    command = [sys.executable, "-W", "error", "-c", WITHOUT_TORCH, str(SCRIPT), str(model), "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None and server.stderr is not None
        url = server.stdout.readline().strip()
        assert url.startswith("http://127.0.0.1:"), server.stderr.read()

        def ask(content: bytes | None):
            try:
                with urllib.request.urlopen(url, content, timeout=30) as answer:
                    return answer.status, json.loads(answer.read())
            except urllib.error.HTTPError as refusal:
                with refusal:
                    return refusal.code, json.loads(refusal.read())

        yield ask
    finally:
        server.terminate()
        server.communicate(timeout=30)


def check_same(trained, inputs, contents: list[bytes], ask) -> None:
    """Every answer is the row of `predict` for the same input."""
    table, beliefs = trained.predict(inputs), trained.beliefs(inputs)
    for row, believed, content in zip(table.rows(), beliefs.tolist(), contents, strict=True):
        status, answer = ask(content)
        assert status == 200, answer
        assert {name: row[name] for name in ("decision", "asked", "predicted")}.items() <= answer.items()
        assert answer["probability"] == pytest.approx(row["probability"], abs=1e-5)
        accuracies = dict(zip(trained.expert_names, believed[len(trained.class_names) :], strict=True))
        assert answer["expert_accuracies"] == pytest.approx(accuracies, abs=1e-5)


def saved(image: Image.Image, kind: str, **settings) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **settings)
    return file.getvalue()


def odd_images() -> dict[str, bytes]:
    """What cameras and editors write: turned by EXIF, transparent, grey, with a palette."""
    rng = np.random.default_rng(0)
    colours = Image.fromarray(rng.integers(0, 256, (50, 70, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation
    clear = colours.copy()
    clear.putalpha(Image.fromarray(rng.integers(0, 256, (50, 70), dtype=np.uint8)))
    return {
        "turned.jpg": saved(colours, "JPEG", exif=exif),
        "clear.png": saved(clear, "PNG"),
        "grey.png": saved(colours.convert("L"), "PNG"),
        "palette.gif": saved(colours, "GIF"),
    }


def test_an_image_is_decided_as_by_predict(photo_run, tmp_path):
    run, model = photo_run("loss=ova"), tmp_path / "model.onnx"
    main(["export", str(run), "--out", str(model), "experts.costs=0.05"])
    trained = l2d.load(run)
    trained.cfg.experts.costs = 0.05
    for name, content in odd_images().items():
        (tmp_path / name).write_bytes(content)
    files = [*sorted((run.parents[3] / "images").glob("*.jpg"))[::4], *(tmp_path / name for name in odd_images())]
    deep = saved(Image.fromarray(np.zeros((40, 40), dtype=np.uint16)), "PNG")
    with served(model) as ask:
        status, facts = ask(None)
        assert status == 200 and facts["class_names"] == ["cat", "dog", "owl"] and facts["costs"] == [0.05] * 3
        check_same(trained, files, [file.read_bytes() for file in files], ask)
        for content, named in (
            (b"<html>", "no image format"),
            (deep, "8 bits"),
            (files[0].read_bytes()[:300], "no input"),
        ):
            status, answer = ask(content)
            assert status == 400 and named in answer["error"]
        assert ask(b"")[0] == 413
        assert ask(files[0].read_bytes())[0] == 200  # it still answers


def test_an_image_that_the_run_streamed_is_decided_nearly_as_by_predict(photo_run, tmp_path):
    """torch resized it there, Pillow does here: a few pixels differ by a level."""
    run, model = photo_run("loss=ova", "dataset.feed=stream"), tmp_path / "model.onnx"
    main(["export", str(run), "--out", str(model)])
    system, trained = runpy.run_path(str(SCRIPT))["System"](str(model)), l2d.load(run)
    files = sorted((run.parents[3] / "images").glob("*.jpg"))
    off = [
        system.decide(file.read_bytes())["probability"] - probability
        for file, probability in zip(files, trained.predict(files)["probability"], strict=True)
    ]
    assert 1e-6 < np.abs(off).max() < 1e-3


def test_a_vector_is_decided_as_by_predict(features_run, tmp_path):
    model = tmp_path / "model.onnx"
    main(["export", str(features_run), "--out", str(model), "--batch", "3"])
    rows = pd.read_csv(features_run.parents[2] / "all.csv")[["x_a", "x_b", "x_c"]].to_numpy()[:12]
    with served(model) as ask:
        check_same(l2d.load(features_run), rows, [json.dumps(row.tolist()).encode() for row in rows], ask)
        for content, named in (
            (b"[1, 2]", r"[2]"),
            (b"[1, 2, 1e300]", "finite"),
            (b'{"x": 1}', "input"),
            (b"a", "input"),
        ):
            status, answer = ask(content)
            assert status == 400 and named in answer["error"]
