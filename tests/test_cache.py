"""The image cache: decoded once, mapped later, never used when anything about it or the files has changed."""

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from l2d.data import cache, contents
from l2d.data.cache import decode, load_images
from l2d.data.files import ImageFiles, read_box
from l2d.data.images import image_preprocessing
from l2d.data.manifest import cache_folder
from l2d.errors import UserError
from l2d.place.memory import available_memory


@pytest.fixture
def files(tmp_path):
    """Five 8 x 8 PNG images of noise."""
    root = tmp_path / "images"
    root.mkdir()
    for i in range(5):
        Image.fromarray(noise(i)).save(root / f"{i}.png", format="bmp")  # the same size, whatever it shows
    names = [f"{i}.png" for i in range(5)]
    return ImageFiles(root, names, image_preprocessing(8, 8, "none"), workers=2, cache=str(tmp_path / "cache"))


def noise(i: int, height: int = 8, width: int = 8) -> np.ndarray:
    return np.random.default_rng(i).integers(0, 256, (height, width, 3), dtype=np.uint8)


def load(files, feed="resident", on_error="error"):
    return load_images({"train": replace(files, on_error=on_error)}, feed)["train"]


def assert_pixels(images, seeds):
    expected = np.stack([noise(i).transpose(2, 0, 1) for i in seeds])
    assert images.pixels.numpy().dtype == np.uint8
    np.testing.assert_array_equal(images.pixels.numpy(), expected)
    assert list(images.ids()) == [f"{i}.png" for i in seeds]


@pytest.mark.parametrize("size", [(6, 10), (10, 6), (6, 6)])
def test_the_centre_is_kept_exactly_where_no_resizing_is_needed(tmp_path, size):
    height, width = size
    Image.fromarray(noise(0, height, width)).save(tmp_path / "a.png")
    top, left = (height - 6) // 2, (width - 6) // 2
    expected = noise(0, height, width)[top : top + 6, left : left + 6]
    np.testing.assert_array_equal(decode(tmp_path / "a.png", 6), expected)


def test_the_shorter_side_is_resized_up_and_down(tmp_path):
    halves = np.zeros((20, 40, 3), dtype=np.uint8)
    halves[:, 20:] = (200, 100, 50)  # black left, coloured right
    Image.fromarray(halves).save(tmp_path / "a.png")
    for size in (10, 30):
        pixels = decode(tmp_path / "a.png", size)
        assert pixels.shape == (size, size, 3)
        assert (pixels[:, : size // 2 - 2] == 0).all()
        assert (pixels[:, size // 2 + 2 :] == (200, 100, 50)).all()


def test_a_later_start_decodes_nothing(files, tmp_path, monkeypatch):
    images, kept = load(files)
    assert_pixels(images, range(5))
    assert kept == [0, 1, 2, 3, 4]
    monkeypatch.setattr(cache, "decode", lambda *_: pytest.fail("decoded again"))
    assert_pixels(load(files)[0], range(5))


@pytest.mark.parametrize("way", ["written", "replaced"])
def test_a_file_of_other_content_is_decoded_again_even_with_the_same_size_and_time(files, tmp_path, way, monkeypatch):
    monkeypatch.setattr(contents, "SETTLED", -1)  # even a new file is remembered
    load(files)
    path = files.root / "2.png"
    stat, other = path.stat(), tmp_path / "other.bmp"
    Image.fromarray(noise(2)[::-1].copy()).save(path if way == "written" else other, format="bmp")
    if way == "replaced":
        os.replace(other, path)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert path.stat().st_size == stat.st_size
    expected = np.asarray(Image.open(path)).transpose(2, 0, 1)
    images = load(files)[0].pixels.numpy()
    np.testing.assert_array_equal(images[2], expected)
    np.testing.assert_array_equal(images[3], noise(3).transpose(2, 0, 1))
    assert len(list((tmp_path / "cache").glob("*.images"))) == 1  # the stale one was replaced


def test_a_file_that_was_only_touched_is_not_decoded_again(files, tmp_path, monkeypatch):
    load(files)
    (files.root / "2.png").touch()
    monkeypatch.setattr(cache, "decode", lambda *_: pytest.fail("decoded again"))
    assert_pixels(load(files)[0], range(5))


def test_a_file_is_read_once_for_its_digest(files, tmp_path, monkeypatch):
    monkeypatch.setattr(contents, "SETTLED", -1)
    first = contents.file_digests(files.root, files.paths, tmp_path / "cache")
    assert len(set(first)) == 5
    read = []
    monkeypatch.setattr(contents, "_digest", lambda path: read.append(path.name) or "new")
    assert contents.file_digests(files.root, files.paths, tmp_path / "cache") == first
    (files.root / "3.png").touch()
    assert contents.file_digests(files.root, files.paths, tmp_path / "cache") == [*first[:3], "new", first[4]]
    assert read == ["3.png"]


def test_what_is_no_regular_file_has_no_digest(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    assert contents.file_digests(tmp_path, ["pipe", "folder"], tmp_path / "cache") == ["", ""]
    with pytest.raises(UserError, match=r"'gone\.png'"):
        contents.file_digests(tmp_path, ["gone.png"], tmp_path / "cache")


@pytest.mark.parametrize("damage", ["empty", "cut", "longer", "first byte", "footer", "tail", "text"])
def test_a_damaged_cache_is_rebuilt(files, tmp_path, damage):
    load(files)
    (path,) = (tmp_path / "cache").glob("*.images")
    content = bytearray(path.read_bytes())
    flip = {"first byte": 0, "footer": 5 * 3 * 64 + 3, "tail": len(content) - 1}
    if damage in flip:
        content[flip[damage]] ^= 1
    path.write_bytes(
        {"empty": b"", "cut": content[:-100], "longer": content + b"x", "text": b"no cache at all"}.get(damage, content)
    )
    assert_pixels(load(files)[0], range(5))


def test_many_at_once_end_in_one_whole_file(files, tmp_path):
    with ThreadPoolExecutor(4) as pool:
        for images, _ in pool.map(lambda _: load(files), range(4)):
            assert_pixels(images, range(5))
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".contents", ".images"]


def test_an_interrupted_write_leaves_nothing(files, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "decode", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        load(files)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".contents"]


def test_a_cache_that_cannot_be_written_is_a_sentence(files, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(UserError, match=r"cannot be written .*dataset\.cache"):
        load(files)


def test_damaged_images_are_named_or_left_out(files, tmp_path, caplog):
    whole = (files.root / "1.png").read_bytes()
    (files.root / "1.png").write_bytes(whole[: len(whole) // 2])
    (files.root / "3.png").write_bytes(b"")
    for _ in range(2):  # decoding, then from the cache
        with pytest.raises(UserError, match=r"2 of 5 images cannot be read: 1\.png, 3\.png; .*on_error=skip"):
            load(files)
    with caplog.at_level(logging.WARNING, "l2d"):
        images, kept = load(files, on_error="skip")
    assert kept == [0, 2, 4]
    assert_pixels(images, kept)
    assert "1.png, 3.png" in caplog.text


def test_an_image_that_resizing_makes_huge_is_treated_as_damaged(files):
    """Both ways of decoding; before, 102 bytes took gigabytes."""
    line, shape = files.root / "3.png", (1, 8000)
    Image.new("RGB", shape).save(line)
    big = replace(files, preprocessing=image_preprocessing(256, 256, "none"))
    with pytest.raises(UserError, match=r"1 of 5 images cannot be read: 3\.png"):
        load(big)
    assert load(big, on_error="skip")[1] == [0, 1, 2, 4]
    with pytest.raises(UserError, match=r"3\.png .*256 x 2,048,000"):
        read_box(line, lambda height, width: ((0, 0, height, width), (256 * height, 256 * width)))


def test_auto_streams_what_does_not_fit_and_says_so(files, tmp_path, monkeypatch, caplog, capsys):
    needed = 5 * 3 * 8 * 8
    monkeypatch.setattr(cache, "available_memory", lambda: 2 * needed)
    assert_pixels(load(files, feed="auto")[0], range(5))
    assert not caplog.text
    monkeypatch.setattr(cache, "available_memory", lambda: 2 * needed - 2)
    images, kept = load(files, feed="auto")
    assert images == files
    assert kept == [0, 1, 2, 3, 4]
    assert "streamed from disk" in caplog.text
    assert "streamed from disk" in capsys.readouterr().err


def test_the_memory_of_this_machine_is_plausible():
    assert 1e6 < available_memory() < 1e15


def test_cache_folder_by_setting_and_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder(None) == tmp_path / ".cache/l2d"
    assert cache_folder("~/mine") == tmp_path / "mine"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder(None) == tmp_path / "xdg/l2d"
