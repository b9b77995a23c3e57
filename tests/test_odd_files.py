"""Image files as people have them, in both feeds: more than 8 bits, floats, alpha, EXIF orientation, bombs, links."""

import resource
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, PngImagePlugin

from l2d.data import ImageFiles, Loader, Split
from l2d.data.cache import decode, load_images
from l2d.data.files import opened, read_box
from l2d.data.imagenet import list_imagenet
from l2d.data.images import image_preprocessing
from l2d.data.load import _data_digest, load_dataset
from l2d.errors import UserError
from l2d.identity import identity
from l2d.place import Place

SIDE = 16  # of the images, which are decoded at their size
RAMP = np.linspace(0, 65535, SIDE * SIDE).astype(np.uint16).reshape(SIDE, SIDE)
Turn = Image.Transpose
# EXIF orientation -> how an upright image is stored with it
STORED = {
    2: Turn.FLIP_LEFT_RIGHT, 3: Turn.ROTATE_180, 4: Turn.FLIP_TOP_BOTTOM,
    5: Turn.TRANSPOSE, 6: Turn.ROTATE_90, 7: Turn.TRANSVERSE, 8: Turn.ROTATE_270,
}  # fmt: skip


def both(path) -> np.ndarray:
    """The pixels [SIDE, SIDE, 3] of a file, the same from the resident and from the streamed feed."""
    resident = decode(path, SIDE)
    streamed = read_box(path, lambda height, width: ((0, 0, height, width), (SIDE, SIDE)))
    np.testing.assert_array_equal(resident, streamed.permute(1, 2, 0).numpy())
    return resident


def assert_refused(path, *words: str) -> None:
    for way in (lambda: decode(path, SIDE), lambda: read_box(path, lambda h, w: ((0, 0, h, w), (h, w)))):
        with pytest.raises(UserError) as error:
            way()
        assert all(word in str(error.value) for word in (str(path), *words))


def png(path, size: tuple[int, int], bits: int, colour: int, data: bytes, *after: tuple[bytes, bytes]) -> None:
    """A PNG file by hand; `after` are chunks behind its pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    chunks = [(b"IHDR", struct.pack(">IIBBBBB", *size, bits, colour, 0, 0, 0)), (b"IDAT", zlib.compress(data)), *after]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*c) for c in [*chunks, (b"IEND", b"")]))


def tiff(path, bits: int, sample_format: int, photometric: int, data: bytes) -> None:
    """A grey TIFF file of SIDE x SIDE pixels by hand."""
    offset = 8 + 2 + 9 * 12 + 4
    tags = {256: SIDE, 257: SIDE, 258: bits, 259: 1, 262: photometric, 273: offset, 277: 1, 279: len(data)}
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, v) for tag, v in {**tags, 339: sample_format}.items())
    path.write_bytes(struct.pack("<2sHIH", b"II", 42, 8, 9) + entries + b"\0\0\0\0" + data)


def picture(height: int = SIDE, width: int = SIDE) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth(height: int, width: int) -> Image.Image:
    y, x = np.mgrid[:height, :width]
    return Image.fromarray(np.stack((255 * x / width, 255 * y / height, 0 * x), axis=-1).astype(np.uint8))


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK", "1", "P"])
def test_ordinary_files_are_what_pillow_makes_of_them(tmp_path, mode):
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.fromarray(picture()).convert(mode).save(path)
    np.testing.assert_array_equal(both(path), np.asarray(Image.open(path).convert("RGB")))


@pytest.mark.parametrize("kind", ["png", "tif", "big-endian.tif", "pgm"])
def test_sixteen_bits_are_scaled_by_the_range_of_the_format(tmp_path, kind):
    path = tmp_path / f"a.{kind}"
    image = Image.fromarray(RAMP)
    if kind.startswith("big"):
        image = Image.frombytes("I;16B", (SIDE, SIDE), RAMP.astype(">u2").tobytes())
    image.save(path)
    grey = both(path)
    np.testing.assert_array_equal(grey, np.repeat((RAMP >> 8)[..., None], 3, -1))
    assert 127 <= grey.mean() <= 128


def test_grey_and_colour_of_sixteen_bits_are_scaled_alike(tmp_path):
    rows = b"".join(b"\0" + np.repeat(row.astype(">u2"), 3).tobytes() for row in RAMP)
    png(tmp_path / "colour.png", (SIDE, SIDE), 16, 2, rows)
    Image.fromarray(RAMP).save(tmp_path / "grey.png")
    np.testing.assert_array_equal(both(tmp_path / "colour.png"), both(tmp_path / "grey.png"))


def test_twelve_bits_and_inverted_grey(tmp_path):
    levels = RAMP >> 4  # 0..4095
    pairs = levels.reshape(-1, 2).astype(int)
    packed = np.stack((pairs[:, 0] >> 4, (pairs[:, 0] & 15) << 4 | pairs[:, 1] >> 8, pairs[:, 1] & 255), -1)
    tiff(tmp_path / "twelve.tif", 12, 1, 1, packed.astype(np.uint8).tobytes())
    np.testing.assert_array_equal(both(tmp_path / "twelve.tif")[..., 0], levels >> 4)
    tiff(tmp_path / "inverted.tif", 16, 1, 0, RAMP.tobytes())
    np.testing.assert_array_equal(both(tmp_path / "inverted.tif")[..., 0], 255 - (RAMP >> 8))


@pytest.mark.parametrize(
    ("kind", "word"), [("float", "floating-point"), ("signed 32", "integers"), ("signed 16", "integers")]
)
def test_pixels_of_unknown_range_are_refused_by_name(tmp_path, kind, word):
    path = tmp_path / "a.tif"
    if kind == "signed 16":
        tiff(path, 16, 2, 1, RAMP.tobytes())
    else:
        Image.fromarray((RAMP / 65535).astype(np.float32) if kind == "float" else RAMP.astype(np.int32)).save(path)
    assert_refused(path, word, "8 or 16 bits")


@pytest.mark.parametrize("kind", ["jpg", "png", "tif", "webp"])
@pytest.mark.parametrize("orientation", [1, *STORED])
def test_a_rotated_file_is_seen_upright(tmp_path, kind, orientation):
    upright = smooth(SIDE, 2 * SIDE)
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored = upright.transpose(STORED[orientation]) if orientation in STORED else upright
    stored.save(tmp_path / f"a.{kind}", exif=exif, **({"quality": 100} if kind in ("jpg", "webp") else {}))
    tolerance = 16 if kind in ("jpg", "webp") else 0  # of their compression; a turn would differ by more than 100
    expected = np.asarray(upright).astype(int)
    assert np.abs(decode(tmp_path / f"a.{kind}", SIDE).astype(int) - expected[:, 8:24]).max() <= tolerance
    seen = []
    box = read_box(tmp_path / f"a.{kind}", lambda *size: seen.append(size) or ((2, 5, 8, 20), (8, 20)))
    assert seen == [(SIDE, 2 * SIDE)]
    assert np.abs(box.permute(1, 2, 0).numpy().astype(int) - expected[2:10, 5:25]).max() <= tolerance


@pytest.mark.parametrize("orientation", [3, 6])
def test_a_box_of_a_large_rotated_jpeg_is_decoded_small(tmp_path, orientation, monkeypatch):
    upright = smooth(600, 1600)
    exif = Image.Exif()
    exif[0x0112] = orientation
    upright.transpose(STORED[orientation]).save(tmp_path / "a.jpg", quality=95, exif=exif)
    box = read_box(tmp_path / "a.jpg", lambda h, w: ((100, 800, 480, 640), (60, 80)))
    expected = upright.crop((800, 100, 1440, 580)).resize((80, 60), Image.Resampling.BILINEAR)
    assert np.abs(box.permute(1, 2, 0).numpy().astype(int) - np.asarray(expected).astype(int)).max() <= 6
    sizes, crop = [], Image.Image.crop
    monkeypatch.setattr(Image.Image, "crop", lambda image, box: sizes.append(image.size) or crop(image, box))
    read_box(tmp_path / "a.jpg", lambda h, w: ((0, 0, h, w), (75, 200)))
    assert sizes == [(200, 75)]  # an eighth, upright


def test_exif_behind_the_pixels_of_a_png_counts(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 3
    rows = b"".join(b"\0" + row.tobytes() for row in picture())
    png(tmp_path / "a.png", (SIDE, SIDE), 8, 2, rows, (b"eXIf", exif.tobytes().removeprefix(b"Exif\0\0")))
    np.testing.assert_array_equal(both(tmp_path / "a.png"), picture()[::-1, ::-1])


@pytest.mark.parametrize(
    "exif", [b"Exif\0\0nonsense", b"Exif\0\0II*\0\x08\0\0\0\xff\xff\x12\x01", b"Exif\0\0II*\0\xff\xff\xff\xff"]
)
def test_damaged_exif_does_not_matter(tmp_path, exif):
    Image.fromarray(picture()).save(tmp_path / "a.jpg", exif=exif)
    Image.fromarray(picture()).save(tmp_path / "plain.jpg")
    np.testing.assert_array_equal(both(tmp_path / "a.jpg"), both(tmp_path / "plain.jpg"))


def test_a_truncated_png_stays_damaged(tmp_path):
    Image.fromarray(picture()).save(tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(content[: len(content) // 2])
    assert_refused(tmp_path / "a.png", "not a readable image")


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "RGB", "GIF"])
def test_transparent_pixels_are_white_and_opaque_ones_as_they_were(tmp_path, mode):
    """The left half is transparent and hides a colour."""
    path, colours = tmp_path / ("a.gif" if mode == "GIF" else "a.png"), np.full((SIDE, SIDE, 3), 60, np.uint8)
    colours[:, : SIDE // 2] = 200
    alpha = np.full((SIDE, SIDE), 255, np.uint8)
    alpha[:, : SIDE // 2] = 0
    image = Image.fromarray(colours)
    if mode in ("RGBA", "LA"):
        image.putalpha(Image.fromarray(alpha))
        image.convert(mode).save(path)
    elif mode == "RGB":
        image.save(path, transparency=(200, 200, 200))
    else:
        indexed = Image.fromarray((alpha > 0).astype(np.uint8))
        indexed.putpalette([200, 200, 200, 60, 60, 60])
        indexed.save(path, transparency=0)
    pixels = both(path)
    assert (pixels[:, : SIDE // 2] == 255).all() and (pixels[:, SIDE // 2 :] == 60).all()


def test_half_transparent_pixels_are_seen_on_white(tmp_path):
    Image.new("RGBA", (SIDE, SIDE), (100, 0, 255, 128)).save(tmp_path / "a.png")
    assert np.abs(both(tmp_path / "a.png").astype(int) - (177, 127, 255)).max() <= 1


def test_a_transparent_level_of_sixteen_bits_is_white(tmp_path):
    Image.fromarray(RAMP).save(tmp_path / "a.png", transparency=int(RAMP[0, 1]))
    pixels = both(tmp_path / "a.png")
    assert (pixels[0, 1] == 255).all() and (pixels[0, 0] == 0).all()


def test_a_decompression_bomb_is_refused_before_it_takes_memory(tmp_path):
    png(tmp_path / "a.png", (20_000, 20_000), 1, 0, bytes(2501 * 20_000))
    assert (tmp_path / "a.png").stat().st_size < 100_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert_refused(tmp_path / "a.png", "pixels")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # kB


def test_there_is_one_limit_of_pixels_and_no_warning_below_it(tmp_path, monkeypatch):
    monkeypatch.setattr(
        Image, "MAX_IMAGE_PIXELS", SIDE * SIDE - 1
    )  # Pillow warns from here, and raises at twice as many
    Image.fromarray(picture()).save(tmp_path / "a.png")
    np.testing.assert_array_equal(both(tmp_path / "a.png"), picture())
    Image.fromarray(picture(2 * SIDE, SIDE)).save(tmp_path / "b.png")
    assert_refused(tmp_path / "b.png", "510")


@pytest.mark.parametrize("feed", ["resident", "stream"])
def test_what_is_refused_may_be_skipped(tmp_path, feed):
    Image.fromarray(picture()).save(tmp_path / "0.png")
    Image.fromarray((RAMP / 65535).astype(np.float32)).save(tmp_path / "1.tif")
    png(tmp_path / "2.png", (20_000, 20_000), 1, 0, b"")
    Image.fromarray(picture()).save(tmp_path / "3.png")
    names = ["0.png", "1.tif", "2.png", "3.png"]

    def labels(on_error):
        preprocessing = image_preprocessing(SIDE, SIDE, "none")
        files = ImageFiles(tmp_path, names, preprocessing, 0 if feed == "stream" else 1, on_error, str(tmp_path / "c"))
        images, kept = load_images({"train": files}, feed)["train"]
        split = Split(images, torch.tensor(kept), torch.zeros(len(kept), 1, dtype=torch.int64))
        return [y for batch in Loader(split, Place(), 2, 0, train=False).epoch() for y in batch.labels.tolist()]

    with pytest.raises(UserError, match=r"1\.tif.*floating-point.*on_error=skip"):
        labels("error")
    assert labels("skip") == [0, 3]


def test_a_header_is_read_without_the_pixels(tmp_path, monkeypatch):
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(picture(SIDE, 2 * SIDE)).save(tmp_path / "a.png", exif=exif)
    Image.fromarray(RAMP.astype(np.float32)).save(tmp_path / "b.tif")
    monkeypatch.setattr(PngImagePlugin.PngImageFile, "load", lambda image: pytest.fail("decoded"))
    with opened(tmp_path / "a.png", pixels=False) as (_, header):
        assert (header.size, header.rotated, header.alpha, header.bits) == ((2 * SIDE, SIDE), True, False, 8)
    with opened(tmp_path / "b.tif", pixels=False) as (_, header):
        assert "floating-point" in header.unknown


def move_away(path, elsewhere) -> None:
    """Put a link in its place."""
    elsewhere.mkdir(exist_ok=True)
    path.rename(elsewhere / path.name)
    path.symlink_to(elsewhere / path.name)


@pytest.mark.parametrize("moved", ["", "train", "train/cat", "train/cat/0.png", "train/cat/deep"])
@pytest.mark.parametrize("kind", ["tree", "manifest"])
def test_links_out_of_the_root_are_followed_where_allowed(tmp_path, composed, kind, moved):
    for split, label in ((s, c) for s in ("train", "test") for c in ("cat", "dog")):
        for name in ("0.png", "deep/1.png"):
            (tmp_path / "data" / split / label / name).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture()).save(tmp_path / "data" / split / label / name)
    paths = sorted(str(path.relative_to(tmp_path / "data")) for path in (tmp_path / "data").rglob("*.png"))
    (tmp_path / "data/rows.csv").write_text(
        "path,label,split\n" + "".join(f"{path},{path.split('/')[1]},{path.split('/')[0]}\n" for path in paths)
    )
    settings = ["dataset=folder", f"dataset.root={tmp_path / 'data'}", f"dataset.cache={tmp_path / 'cache'}"]
    settings += ["dataset.size=16", "dataset.resize=16"] + ["dataset.manifest=rows.csv"] * (kind == "manifest")
    before = identity(composed(*settings))
    move_away(tmp_path / "data" / moved, tmp_path / "elsewhere")
    if moved:
        with pytest.raises(UserError, match=rf"'{moved}.*dataset\.follow_links=true"):
            load_dataset(composed(*settings))
    cfg = composed(*settings, *["dataset.follow_links=true"] * bool(moved))
    dataset = load_dataset(cfg)
    assert sorted([*dataset.train.inputs.ids(), *dataset.test.inputs.ids()]) == paths
    _data_digest.cache_clear()
    assert identity(cfg) == before


def test_a_folder_that_contains_itself_is_listed_once(tmp_path, composed):
    for split in ("train", "test"):
        (tmp_path / split / "cat").mkdir(parents=True)
        Image.fromarray(picture()).save(tmp_path / split / "cat/0.png")
    (tmp_path / "train/cat/again").symlink_to(tmp_path / "train/cat")
    cfg = composed("dataset=folder", f"dataset.root={tmp_path}", "dataset.size=16", "dataset.resize=16")
    cfg.dataset.feed = "stream"
    assert load_dataset(cfg).train.inputs.ids() == ["train/cat/0.png"]


def test_paths_that_are_no_links_stay_below_the_root(tmp_path, composed):
    (tmp_path / "data").mkdir()
    Image.fromarray(picture()).save(tmp_path / "0.png")
    (tmp_path / "data/rows.csv").write_text("path,label,split\n../0.png,cat,train\n../0.png,cat,test\n")
    settings = ["dataset=folder", f"dataset.root={tmp_path / 'data'}", "dataset.size=16", "dataset.resize=16"]
    with pytest.raises(UserError, match=r"'\.\./0\.png', which leads out of"):
        load_dataset(composed(*settings, "dataset.manifest=rows.csv", "dataset.follow_links=true"))


@pytest.mark.parametrize("moved", ["val", "val/n02085620", "val/n02085620/0.JPEG"])
def test_links_of_imagenet_are_followed_where_allowed(tmp_path, moved):
    for split in ("train", "val"):
        (tmp_path / "data" / split / "n02085620").mkdir(parents=True)
        Image.fromarray(picture()).save(tmp_path / "data" / split / "n02085620/0.JPEG")
    move_away(tmp_path / "data" / moved, tmp_path / "elsewhere")
    allowed = list_imagenet(str(tmp_path / "data"), None, str(tmp_path / "cache"), follow_links=True)
    assert allowed.index["val/n02085620"][1] == ["0.JPEG"]
    with pytest.raises(UserError, match=r"val/n02085620.*dataset\.follow_links=true"):
        list_imagenet(str(tmp_path / "data"), None, str(tmp_path / "cache"), follow_links=False)
    (tmp_path / "data/val/n02085620/1.JPEG").symlink_to(tmp_path / "gone.JPEG")
    with pytest.raises(UserError, match=r"1\.JPEG cannot be listed"):
        list_imagenet(str(tmp_path / "data"), None, str(tmp_path / "other"), follow_links=True)


def test_a_config_from_before_follow_links_still_loads(tmp_path, composed):
    for split in ("train", "test"):
        (tmp_path / split / "cat").mkdir(parents=True)
        Image.fromarray(picture()).save(tmp_path / split / "cat/0.png")
    cfg = composed("dataset=folder", f"dataset.root={tmp_path}", "dataset.feed=stream", "~dataset.follow_links")
    assert len(load_dataset(cfg).train) == 1
    with pytest.raises(UserError, match=r"dataset\.follow_links=3 must be true or false"):
        load_dataset(composed("dataset=folder", f"dataset.root={tmp_path}", "dataset.follow_links=3"))
