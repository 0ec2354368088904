"""Every loader gives the same kind of Dataset, and says in one sentence why it cannot."""

import gzip
import hashlib
import inspect
import io
import os
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.datasets import load_digits

from nonneg import data
from nonneg.data import Dataset, cifar, pictures
from nonneg.data.splits import hold_out
from nonneg.errors import BadInput

BICUBIC = Image.Resampling.BICUBIC
RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def save(path: Path, image: Image.Image | None = None, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    seed = int(hashlib.md5(path.name.encode()).hexdigest()[:8], 16)
    (image or Image.fromarray(noise(9, 7, 3, seed=seed))).save(path, **options)  # type: ignore[arg-type]
    return path


def records(n: int, *, labels: tuple[int, ...], seed: int = 0) -> bytes:
    """n records with the label bytes `labels`, written out one by one."""
    pixels = noise(n, 3, 32, 32, seed=seed)
    return b"".join(bytes(labels) + pixels[i].tobytes() for i in range(n))


def cifar10_files() -> dict[str, bytes]:
    files = {f"data_batch_{i}.bin": records(4, labels=(i,), seed=i) for i in range(1, 6)}
    names = "airplane automobile bird cat deer dog frog horse ship truck".replace(" ", "\n") + "\n\n"
    return files | {"test_batch.bin": records(3, labels=(9,), seed=6), "batches.meta.txt": names.encode()}


def cifar100_files() -> dict[str, bytes]:
    names = "".join(f"thing_{i}\n" for i in range(100)).encode()
    bins = {"train.bin": records(5, labels=(19, 77)), "test.bin": records(2, labels=(3, 99), seed=1)}
    return bins | {"fine_label_names.txt": names, "coarse_label_names.txt": b"group\n"}


def write_folder(folder: Path, files: dict[str, bytes]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def write_archive(path: Path, folder: str, files: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"{folder}/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def serve() -> Iterator[Callable[[Path], str]]:
    """Start a web server on a folder; gives its address."""
    servers: list[ThreadingHTTPServer] = []

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None: ...

    def start(folder: Path) -> str:
        server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def roots(tmp_path: Path) -> dict[str, Path | None]:
    """A small good root for every loader."""
    write_folder(tmp_path / "c10" / "cifar-10-batches-bin", cifar10_files())
    write_folder(tmp_path / "c100" / "cifar-100-binary", cifar100_files())
    for label in ("cat", "dog"):
        for i in range(6):
            save(tmp_path / "pets" / label / f"{i}.png")
    np.savez(tmp_path / "a.npz", images=noise(10, 8, 8, 3), labels=np.arange(10) % 2)
    names = {"digits": None, "cifar10": "c10", "cifar100": "c100", "folder": "pets", "arrays": "a.npz"}
    return {name: None if path is None else tmp_path / path for name, path in names.items()}


# --- what holds for every loader ---------------------------------------------------------------------------------

LOADERS = ("digits", "cifar10", "cifar100", "folder", "arrays")


@pytest.mark.parametrize("name", LOADERS)
def test_every_loader_has_the_one_signature_and_lives_in_the_package(name: str) -> None:
    loader = getattr(data, name)
    assert str(inspect.signature(loader)) == (
        "(*, split: str = 'train', root: pathlib.Path | None = None, image_size: int | None = None, "
        "strict: bool = False) -> nonneg.data.dataset.Dataset"
    )
    assert loader.__module__.startswith("nonneg.data.") and loader.__name__ == name


@pytest.mark.parametrize("size", [None, 12])
@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize("name", LOADERS)
def test_every_loader_gives_the_same_kind_of_dataset(
    name: str, split: str, size: int | None, roots: dict[str, Path | None]
) -> None:
    d = getattr(data, name)(split=split, root=roots[name], image_size=size)
    native = {"digits": 16, "cifar10": 32, "cifar100": 32, "folder": 64, "arrays": 8}[name]
    n, side = len(d), size or native
    assert d.name == name and n > 0
    assert d.images.shape == (n, 1 if name == "digits" else 3, side, side)
    assert (d.channels, d.image_size) == (d.images.shape[1], side)
    assert d.images.dtype == torch.uint8 and d.images.is_contiguous()
    assert d.labels is not None and d.labels.dtype == torch.int64 and d.labels.shape == (n,)
    assert d.classes and d.labels.min() >= 0 and d.labels.max() < len(d.classes)
    assert len(set(d.ids)) == n and all(isinstance(i, str) for i in d.ids)
    assert d.skipped == []
    again = getattr(data, name)(split=split, root=roots[name], image_size=size, strict=True)
    assert again.fingerprint() == d.fingerprint() and again.ids == d.ids


@pytest.mark.parametrize("name", LOADERS)
def test_splits_are_disjoint_and_agree_on_the_classes(name: str, roots: dict[str, Path | None]) -> None:
    train, test = (getattr(data, name)(split=s, root=roots[name]) for s in ("train", "test"))
    assert train.classes == test.classes
    if name not in ("cifar10", "cifar100"):  # their two splits are numbered apart
        assert not set(train.ids) & set(test.ids)


@pytest.mark.parametrize("name", LOADERS)
def test_an_unknown_split_or_size_is_refused(name: str, roots: dict[str, Path | None]) -> None:
    with pytest.raises(BadInput, match="did you mean 'test'"):
        getattr(data, name)(split="tset", root=roots[name])
    for size in (0, -3, 10**6):
        with pytest.raises(BadInput, match="image_size is"):
            getattr(data, name)(root=roots[name], image_size=size)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "folder", "arrays"])
def test_a_root_that_is_not_there_is_refused_by_its_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nowhere"):
        getattr(data, name)(root=tmp_path / "nowhere")


@settings(deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8")), unique=True, max_size=40), st.randoms())
def test_hold_out_is_a_fifth_chosen_by_name_alone(keys: list[str], random: object) -> None:
    train, test = hold_out(keys, "train"), hold_out(keys, "test")
    assert sorted(train + test) == list(range(len(keys)))
    assert len(test) == (0 if len(keys) < 2 else max(1, round(len(keys) / 5)))
    by_hash = sorted(keys, key=lambda k: hashlib.sha256(k.encode()).hexdigest())
    assert {keys[i] for i in test} == set(by_hash[: len(test)])
    shuffled = list(keys)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert {shuffled[i] for i in hold_out(shuffled, "test")} == {keys[i] for i in test}


# --- Dataset -----------------------------------------------------------------------------------------------------


def small(**changes: object) -> Dataset:
    images, labels = torch.from_numpy(noise(4, 3, 5, 5)), torch.tensor([0, 1, 1, 0])
    good = {"name": "toy", "images": images, "labels": labels, "classes": ["a", "b"], "ids": list("wxyz")}
    return Dataset(**(good | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"images": torch.zeros(4, 3, 5, 5)}, "torch.float32"),
        ({"images": torch.zeros(4, 5, 5, dtype=torch.uint8)}, r"\(4, 5, 5\)"),
        ({"images": torch.zeros(4, 2, 5, 5, dtype=torch.uint8)}, "C 1 or 3"),
        ({"images": torch.zeros(4, 3, 5, 6, dtype=torch.uint8)}, "5 x 6"),
        ({"images": torch.zeros(0, 3, 5, 5, dtype=torch.uint8)}, "no images"),
        ({"ids": ["w"]}, "1 ids for 4 images"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, r"shape \(3,\)"),
        ({"labels": torch.zeros(4)}, "torch.float32"),
        ({"labels": torch.tensor([0, 1, 2, 0])}, "from 0 to 2, but must be 0 to 1"),
        ({"labels": torch.tensor([0, -1, 1, 0]), "classes": None}, "from -1"),
        ({"labels": None}, "2 classes but no labels"),
        ({"classes": ["a", "a"]}, "share a name"),
    ],
)
def test_a_dataset_that_does_not_fit_together_is_refused(changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        small(**changes)


def test_labels_and_classes_are_optional() -> None:
    assert small(labels=None, classes=None).labels is None
    assert small(classes=None).classes is None


def test_fingerprint_sees_every_pixel_the_shape_and_the_labels() -> None:
    d = small()
    touched = d.images[:].clone()
    touched[3, 2, 4, 4] ^= 1
    others = [
        small(images=touched),
        small(images=torch.cat([d.images[:][:, :1]] * 3, 1)),
        small(labels=torch.tensor([0, 1, 1, 1])),
        small(labels=None, classes=None),
    ]
    prints = {x.fingerprint() for x in [d, *others]}
    assert len(prints) == 5 and all(len(p) == 16 and int(p, 16) >= 0 for p in prints)
    assert small(images=d.images[:].to(memory_format=torch.channels_last)).fingerprint() == d.fingerprint()
    ones = torch.full((1, 1, 4, 4), 7, dtype=torch.uint8)
    plain = small(images=ones, labels=None, classes=None, ids=["a"])
    four = small(images=ones.reshape(4, 1, 2, 2), labels=None, classes=None)
    assert plain.fingerprint() != four.fingerprint()


def test_subset_keeps_images_labels_and_ids_together() -> None:
    d = small(skipped=["v: empty file"])
    for indices in ([2, 0], torch.tensor([2, 0]), torch.tensor([2, 0], dtype=torch.int32)):
        s = d.subset(indices)
        assert s.ids == ["y", "w"] and s.labels is not None and s.labels.tolist() == [1, 0]
        assert torch.equal(s.images[:], torch.stack([d.images[:][2], d.images[:][0]])) and s.skipped == d.skipped
    assert small(labels=None, classes=None).subset(range(1, 3)).ids == ["x", "y"]
    assert d.named(d.ids) is d and d.named(["y", "w"]).ids == ["y", "w"]


def test_mean_and_deviation_are_of_all_images_or_of_some_evenly_spread() -> None:
    d = small()
    x = d.images[:].double() / 255
    mean, deviation = d.mean_and_deviation()
    assert mean.tolist() == pytest.approx([x[:, c].mean().item() for c in range(3)])
    assert deviation.tolist() == pytest.approx([x[:, c].std().item() for c in range(3)])
    sorted_by_class = torch.arange(5000).ge(2500).view(-1, 1, 1, 1).to(torch.uint8) * 255
    many = small(images=sorted_by_class, labels=None, classes=None, ids=[str(i) for i in range(5000)])
    assert many.mean_and_deviation()[0].item() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("indices", [[], [4], [-1], [0.5], [True, False, True, False], [[0]]])
def test_a_subset_that_makes_no_sense_is_refused(indices: list[int]) -> None:
    with pytest.raises(BadInput, match="subset"):
        small().subset(indices)


# --- pictures ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height", "size"), [(40, 20, 10), (20, 60, 10), (30, 30, 12), (8, 12, 16)])
def test_square_is_resize_of_the_shorter_side_then_centre_crop(width: int, height: int, size: int) -> None:
    image = Image.fromarray(noise(height, width, 3))
    k = size / min(width, height)
    w, h = round(width * k), round(height * k)
    left, top = (w - size) // 2, (h - size) // 2
    expected = image.resize((w, h), BICUBIC).crop((left, top, left + size, top + size))
    assert np.array_equal(np.asarray(pictures.square(image, size)), np.asarray(expected))


@pytest.mark.parametrize("channels", [1, 3])
def test_resize_matches_pillow_image_by_image(channels: int) -> None:
    images = noise(3, channels, 8, 8)
    out = pictures.resize(images, 16)
    for image, mine in zip(images, out, strict=True):
        for plane, small_plane in zip(mine, image, strict=True):  # Pillow resizes each channel on its own
            assert np.array_equal(plane, np.asarray(Image.fromarray(small_plane).resize((16, 16), BICUBIC)))
    assert pictures.resize(images, 8) is images and pictures.resize(images, None) is images


def grey(value: int) -> tuple[int, int, int]:
    return (value, value, value)


MODES = {
    "1": (Image.new("1", (6, 6), 1), "png", WHITE),
    "L": (Image.new("L", (6, 6), 100), "png", grey(100)),
    "LA": (Image.new("LA", (6, 6), (0, 51)), "png", grey(204)),  # a fifth of black over white
    "P": (Image.new("RGB", (6, 6), RED).quantize(4), "png", RED),
    "RGB": (Image.new("RGB", (6, 6), BLUE), "bmp", BLUE),
    "RGBA": (Image.new("RGBA", (6, 6), (255, 0, 0, 0)), "png", WHITE),  # what is clear is white, whatever is below
    "RGBA-webp": (Image.new("RGBA", (6, 6), (255, 0, 0, 255)), "webp", RED),
    "CMYK": (Image.new("CMYK", (6, 6), (0, 255, 255, 0)), "tif", RED),
    "I;16": (Image.fromarray(np.full((6, 6), 100 * 257 - 100, np.uint16)), "png", grey(100)),  # rounded
    "I;16-white": (Image.fromarray(np.full((6, 6), 65535, np.uint16)), "tiff", WHITE),
    "I": (Image.fromarray(np.full((6, 6), 100 * 257, np.int32)), "pgm", grey(100)),
    "gif": (Image.new("RGB", (6, 6), BLUE), "gif", BLUE),
    "ppm": (Image.new("RGB", (6, 6), BLUE), "ppm", BLUE),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_rgb(mode: str, tmp_path: Path) -> None:
    image, extension, colour = MODES[mode]
    options = {"lossless": True} if extension == "webp" else {}
    save(tmp_path / f"a.{extension}", image, **options)
    d = data.folder(root=tmp_path, image_size=4)
    assert d.images.shape == (1, 3, 4, 4) and d.labels is None and d.classes is None
    assert d.images[0].permute(1, 2, 0).reshape(16, 3).tolist() == [list(colour)] * 16


def test_a_palette_with_a_clear_colour_is_laid_over_white(tmp_path: Path) -> None:
    red = Image.new("RGB", (6, 6), RED).quantize(4)
    save(tmp_path / "a.png", red, transparency=red.getpixel((0, 0)))
    assert data.folder(root=tmp_path, image_size=4).images[:].min() == 255


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int, tmp_path: Path) -> None:
    upright = Image.fromarray(noise(12, 12, 3))
    flips = Image.Transpose  # what a camera held that way stored, undone by `orientation`
    stored = {
        2: flips.FLIP_LEFT_RIGHT,
        3: flips.ROTATE_180,
        4: flips.FLIP_TOP_BOTTOM,
        5: flips.TRANSPOSE,
        6: flips.ROTATE_90,
        7: flips.TRANSVERSE,
        8: flips.ROTATE_270,
    }.get(orientation)
    exif = Image.Exif()
    exif[0x0112] = orientation
    save(tmp_path / "a.png", upright.transpose(stored) if stored is not None else upright, exif=exif)
    found = data.folder(root=tmp_path, image_size=12).images[0].permute(1, 2, 0).numpy()
    assert np.array_equal(found, np.asarray(upright))


def test_a_large_jpeg_read_by_the_short_cut_is_almost_the_whole_one(tmp_path: Path) -> None:
    smooth = Image.fromarray(noise(12, 16, 3)).resize((800, 600), BICUBIC)
    path = save(tmp_path / "a.jpg", smooth, quality=95)
    with Image.open(path) as image:
        whole = np.asarray(pictures.square(image.convert("RGB"), 32), int).transpose(2, 0, 1)
    difference = np.abs(data.folder(root=tmp_path, image_size=32).images[0].numpy() - whole)
    assert difference.mean() < 1 and difference.max() < 8


# --- digits ------------------------------------------------------------------------------------------------------


def test_digits_are_scikit_learns_scaled_to_bytes() -> None:
    pixels, target = load_digits(return_X_y=True)
    for split in ("train", "test"):
        d = data.digits(split=split, image_size=8)
        assert d.labels is not None
        for i in range(0, len(d), 50):
            k = int(d.ids[i])
            expected = [[round(v * 255 / 16) for v in row] for row in pixels[k].reshape(8, 8).tolist()]
            assert d.images[:][i, 0].tolist() == expected and d.labels[i] == target[k]


def test_digits_split_is_a_stratified_quarter() -> None:
    train, test = data.digits(), data.digits(split="test")
    assert len(train) + len(test) == 1797 and len(test) == round(1797 / 4 + 0.5)
    assert sorted(map(int, train.ids + test.ids)) == list(range(1797))
    assert train.labels is not None and test.labels is not None
    held = torch.bincount(test.labels) / (torch.bincount(train.labels) + torch.bincount(test.labels))
    assert (held - 0.25).abs().max() < 0.01
    assert train.image_size == 16


# --- CIFAR -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["outer", "inner", "archive", "archive itself"])
def test_cifar10_is_found_in_every_layout_and_read_record_by_record(
    layout: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = cifar10_files()
    inner = tmp_path / "cifar-10-batches-bin"
    archive = tmp_path / "cifar-10-binary.tar.gz"
    if layout in ("outer", "inner"):
        write_folder(inner, files)
    else:
        write_archive(archive, inner.name, files)
    root = {"outer": tmp_path, "inner": inner, "archive": tmp_path, "archive itself": archive}[layout]
    d = data.cifar10(root=root)
    assert d.labels is not None and d.labels.tolist() == [i for i in range(1, 6) for _ in range(4)]
    assert d.classes is not None and d.classes[0] == "airplane" and d.classes[9] == "truck"
    assert d.ids == [str(i) for i in range(20)]
    raw = files["data_batch_2.bin"]
    for channel, row, column in [(0, 0, 0), (1, 2, 3), (2, 31, 31)]:  # record 1 of batch 2, byte by byte
        assert d.images[:][5, channel, row, column] == raw[3073 + 1 + channel * 1024 + row * 32 + column]
    test = data.cifar10(root=root, split="test")
    assert len(test) == 3 and test.labels is not None and test.labels.tolist() == [9, 9, 9]
    said = " ".join(capsys.readouterr().err.split())
    assert "cifar10: 3 test images, not the 10000 published; is a file cut?" in said  # a cut shows in nothing else
    assert not list(tmp_path.glob("cifar-10-batches-bin/*")) or layout in ("outer", "inner")  # nothing is extracted


def test_cifar100_uses_the_fine_label(tmp_path: Path) -> None:
    write_archive(tmp_path / "cifar-100-binary.tar.gz", "cifar-100-binary", cifar100_files())
    d = data.cifar100(root=tmp_path)
    assert d.labels is not None and d.labels.tolist() == [77] * 5
    assert d.classes is not None and d.classes[77] == "thing_77"
    assert torch.equal(d.images[:], torch.from_numpy(noise(5, 3, 32, 32)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"data_batch_3.bin": records(4, labels=(3,))[:-1]}, "data_batch_3.bin has 12291 bytes"),
        ({"data_batch_3.bin": b""}, "data_batch_3.bin has 0 bytes"),
        ({"data_batch_3.bin": records(3, labels=(3,))}, "data_batch_3.bin has 3 records"),
        ({"data_batch_3.bin": records(4, labels=(10,))}, "data_batch_3.bin has label 10 in record 0"),
        ({"data_batch_3.bin": None}, "lacks data_batch_3.bin"),
        ({"batches.meta.txt": None}, "lacks batches.meta.txt"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_a_damaged_cifar10_is_refused_by_the_name_of_the_file(
    change: dict[str, bytes | None], sentence: str, packed: bool, tmp_path: Path
) -> None:
    files = {name: content for name, content in (cifar10_files() | change).items() if content is not None}
    if packed:
        write_archive(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", files)
    else:
        write_folder(tmp_path / "cifar-10-batches-bin", files)
    with pytest.raises(BadInput, match=sentence):
        data.cifar10(root=tmp_path)


def test_a_damaged_archive_is_refused_by_its_name(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", cifar10_files())
    whole = archive.read_bytes()
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    for content in (whole[: len(whole) // 2], bytes(flipped), b"", b"not an archive", gzip.compress(b"nor this")):
        archive.write_bytes(content)
        for root in (tmp_path, archive):
            with pytest.raises(BadInput, match=r"cifar-10-binary\.tar\.gz"):
                data.cifar10(root=root)


def test_members_outside_the_folder_of_the_set_are_not_read(tmp_path: Path) -> None:
    write_archive(tmp_path / "cifar-10-binary.tar.gz", "../cifar-10-batches-bin", cifar10_files())
    with pytest.raises(BadInput, match=r"lacks data_batch_1.bin"):
        data.cifar10(root=tmp_path)


def test_the_pickled_version_is_refused_with_the_way_out(tmp_path: Path) -> None:
    write_folder(tmp_path / "cifar-10-batches-py", {"data_batch_1": b"\x80\x04N."})
    with pytest.raises(BadInput, match=r"binary version from https.*never loaded"):
        data.cifar10(root=tmp_path)


@pytest.fixture
def published(
    tmp_path: Path, serve: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path, cifar.Source]:
    """CIFAR-10 published by a server of our own: the archive there, the empty cache, the source."""
    archive = write_archive(tmp_path / "site" / "cifar-10-binary.tar.gz", "cifar-10-batches-bin", cifar10_files())
    md5 = hashlib.md5(archive.read_bytes()).hexdigest()
    source = replace(cifar.CIFAR10, url=f"{serve(archive.parent)}/{archive.name}", md5=md5)
    monkeypatch.setattr(cifar, "CIFAR10", source)
    monkeypatch.setenv("NONNEG_DATA", str(tmp_path / "cache"))
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(proxy, raising=False)
    return archive, tmp_path / "cache", source


def test_without_a_root_the_archive_is_downloaded_once(published: tuple[Path, Path, cifar.Source]) -> None:
    archive, cache, _ = published
    first = data.cifar10()
    assert [p.name for p in cache.iterdir()] == [archive.name]
    content = archive.read_bytes()
    archive.unlink()
    assert data.cifar10().fingerprint() == first.fingerprint() and len(first) == 20
    assert (cache / archive.name).read_bytes() == content


def test_a_wrong_checksum_is_refused_and_nothing_is_kept(published: tuple[Path, Path, cifar.Source]) -> None:
    archive, cache, _ = published
    archive.write_bytes(archive.read_bytes() + b"x")
    with pytest.raises(BadInput, match=r"wrong checksum.*--data-root"):
        data.cifar10()
    assert list(cache.iterdir()) == []


def test_a_damaged_file_in_the_cache_is_fetched_again(published: tuple[Path, Path, cifar.Source]) -> None:
    archive, cache, _ = published
    cache.mkdir()
    (cache / archive.name).write_bytes(archive.read_bytes()[:1000])
    assert len(data.cifar10()) == 20


def test_a_failed_download_says_to_pass_a_root(
    published: tuple[Path, Path, cifar.Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, _, source = published
    archive.unlink()
    with pytest.raises(BadInput, match=r"answered 404.*--data-root"):
        data.cifar10()
    monkeypatch.setattr(cifar, "CIFAR10", replace(source, url=f"http://127.0.0.1:9/{archive.name}"))
    with pytest.raises(BadInput, match=r"no connection.*--data-root"):
        data.cifar10()


def test_a_cache_that_cannot_be_written_is_said(
    published: tuple[Path, Path, cifar.Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, _, _ = published
    monkeypatch.setenv("NONNEG_DATA", str(archive / "below-a-file"))
    with pytest.raises(BadInput, match=r"cannot write to .*NONNEG_DATA"):
        data.cifar10()


def test_an_unpacked_set_in_the_cache_needs_no_download(published: tuple[Path, Path, cifar.Source]) -> None:
    archive, cache, _ = published
    archive.unlink()
    write_folder(cache / "cifar-10-batches-bin", cifar10_files())
    assert len(data.cifar10()) == 20


# --- folder ------------------------------------------------------------------------------------------------------


def test_folder_labels_by_sub_folder_recursively(tmp_path: Path) -> None:
    for i in range(5):
        save(tmp_path / "cat" / f"{i}.png")
        save(tmp_path / "dog" / "deep" / "deeper" / f"{i}.JPG")
    train, test = data.folder(root=tmp_path), data.folder(root=tmp_path, split="test")
    assert (len(train), len(test)) == (8, 2)
    for d in (train, test):
        assert d.classes is not None and d.classes == ["cat", "dog"] and d.labels is not None
        assert [d.classes[y] for y in d.labels.tolist()] == [i.split("/")[0] for i in d.ids]
    everything = sorted(train.ids + test.ids)
    assert everything == sorted(p.relative_to(tmp_path).as_posix() for p in tmp_path.rglob("*.*"))
    assert set(test.ids) == set(sorted(everything, key=lambda i: hashlib.sha256(i.encode()).hexdigest())[:2])


@pytest.mark.parametrize("test_name", ["test", "val", "valid", "validation"])
def test_train_and_test_folders_are_the_splits(test_name: str, tmp_path: Path) -> None:
    save(tmp_path / "train" / "cat" / "1.png")
    save(tmp_path / "train" / "dog" / "1.png")
    save(tmp_path / test_name / "dog" / "2.png")
    save(tmp_path / test_name / "emu" / "2.png")
    train, test = data.folder(root=tmp_path), data.folder(root=tmp_path, split="test")
    assert train.classes == test.classes == ["cat", "dog", "emu"]
    assert train.labels is not None and train.labels.tolist() == [0, 1]
    assert test.labels is not None and test.labels.tolist() == [1, 2]
    assert test.ids == [f"{test_name}/dog/2.png", f"{test_name}/emu/2.png"]
    assert train.skipped == test.skipped == []


def test_what_lies_beside_the_splits_is_listed(tmp_path: Path) -> None:
    for name in ("train", "test", "val", "other"):
        save(tmp_path / name / "cat" / "1.png")
    save(tmp_path / "loose.png")
    d = data.folder(root=tmp_path)
    assert sorted(s.split(":")[0] for s in d.skipped) == ["loose.png", "other", "val"] and d.ids == ["train/cat/1.png"]


def test_half_a_split_is_refused_with_the_way_out(tmp_path: Path) -> None:
    save(tmp_path / "train" / "cat" / "1.png")
    with pytest.raises(BadInput, match=r"has train/ but no test/"):
        data.folder(root=tmp_path)


def test_a_flat_folder_has_no_labels(tmp_path: Path) -> None:
    for i in range(2):
        save(tmp_path / f"{i}.png")
    (tmp_path / "notes").mkdir()
    train, test = data.folder(root=tmp_path), data.folder(root=tmp_path, split="test")
    assert len(train) == len(test) == 1 and train.ids != test.ids
    assert train.labels is None and train.classes is None
    assert train.skipped == ["class 'notes': no images"]


def bad_files(folder: Path) -> dict[str, str]:
    """One file of every unusable kind, and the start of the reason expected for each."""
    good = save(folder / "good.jpg", Image.fromarray(noise(40, 40, 3))).read_bytes()
    png = save(folder / "good.png", Image.fromarray(noise(40, 40, 3))).read_bytes()
    (folder / "empty.jpg").touch()
    (folder / "text.jpg").write_text("not a picture")
    (folder / "cut.jpg").write_bytes(good[: len(good) // 2])
    (folder / "cut.png").write_bytes(png[: len(png) // 2])
    (folder / "page.txt").write_text("words")
    (folder / "link.png").symlink_to(folder / "gone.png")
    os.mkfifo(folder / "pipe.png")
    save(folder / "float.tif", Image.fromarray(np.ones((5, 5), np.float32)))
    return {
        "empty.jpg": "empty file",
        "text.jpg": "not a readable image",
        "cut.jpg": "image file is truncated",
        "cut.png": "image file is truncated",
        "page.txt": "not an image",
        "link.png": "no such file",
        "pipe.png": "not a regular file",
        "float.tif": "floating-point pixels",
    }


def test_what_cannot_be_read_is_listed_with_its_reason(tmp_path: Path) -> None:
    bad_files(tmp_path / "test" / "cat")
    expected = bad_files(tmp_path / "train" / "cat")
    (tmp_path / "train" / "cat" / ".hidden.txt").write_text("not seen")
    save(tmp_path / "train" / ".cache" / "a.png")
    d = data.folder(root=tmp_path)
    assert d.ids == ["train/cat/good.jpg", "train/cat/good.png"]
    reasons = dict(s.removeprefix("train/cat/").split(": ", 1) for s in d.skipped if s.startswith("train/"))
    assert reasons.keys() == expected.keys()
    for name, reason in expected.items():
        assert reasons[name].startswith(reason), name
    assert str(tmp_path) not in "".join(d.skipped)


@pytest.mark.parametrize("name", ["empty.jpg", "text.jpg", "cut.jpg", "page.txt"])
def test_strict_raises_naming_what_cannot_be_read(name: str, tmp_path: Path) -> None:
    bad_files(tmp_path / "all")
    for split in ("train", "test"):
        save(tmp_path / "root" / split / "cat" / "good.png")
    (tmp_path / "root" / "train" / "cat" / name).write_bytes((tmp_path / "all" / name).read_bytes())
    with pytest.raises(BadInput, match=f"train/cat/{name}"):
        data.folder(root=tmp_path / "root", strict=True)
    assert len(data.folder(root=tmp_path / "root")) == 1


@pytest.mark.parametrize("limit", [1600, 900])  # Pillow warns above the limit, refuses above twice the limit
def test_a_picture_too_large_to_open_is_skipped(limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    for split in ("train", "test"):
        save(tmp_path / split / "ok.png")
    save(tmp_path / "train" / "huge.png", Image.new("RGB", (50, 50)))
    d = data.folder(root=tmp_path)
    assert d.ids == ["train/ok.png"]
    assert len(d.skipped) == 1 and d.skipped[0].startswith(f"train/huge.png: more than {limit} pixels")


def test_a_class_without_usable_images_is_left_out_of_both_splits(tmp_path: Path) -> None:
    for split in ("train", "test"):
        save(tmp_path / split / "cat" / "1.png")
        save(tmp_path / split / "owl" / "1.png")
        write_folder(tmp_path / split / "dog", {"broken.png": b"x"})
    (tmp_path / "train" / "bat").mkdir()
    write_folder(tmp_path / "train" / "fox", {"broken.png": b"x"})
    save(tmp_path / "test" / "fox" / "1.png")  # usable in the other split, so the class stays in both
    train, test = data.folder(root=tmp_path), data.folder(root=tmp_path, split="test")
    assert train.classes == test.classes == ["cat", "fox", "owl"]
    assert train.labels is not None and train.labels.tolist() == [0, 2]
    assert {"class 'bat': no images", "class 'dog': no images"} <= set(train.skipped) & set(test.skipped)


def test_strict_raises_for_a_class_without_images(tmp_path: Path) -> None:
    for i in range(5):
        save(tmp_path / "cat" / f"{i}.png")
    (tmp_path / "dog").mkdir()
    with pytest.raises(BadInput, match="class 'dog': no images"):
        data.folder(root=tmp_path, strict=True)


def test_files_beside_the_class_folders_are_listed(tmp_path: Path) -> None:
    for i in range(5):
        save(tmp_path / "cat" / f"{i}.png")
    save(tmp_path / "loose.png")
    d = data.folder(root=tmp_path)
    assert len(d) == 4 and d.skipped == ["loose.png: beside the class folders, so it has no class"]


def test_links_are_followed_but_not_in_circles(tmp_path: Path) -> None:
    for i in range(5):
        save(tmp_path / "store" / f"{i}.png")
    root = tmp_path / "root"
    (root / "cat").mkdir(parents=True)
    (root / "cat" / "all").symlink_to(tmp_path / "store")
    (root / "cat" / "round").symlink_to(root / "cat")
    assert len(data.folder(root=root)) == 4


def test_a_file_name_that_is_not_unicode_gets_an_id_that_can_be_written(tmp_path: Path) -> None:
    for name in (b"\xff.png", b"ok.png"):
        (tmp_path / os.fsdecode(name)).write_bytes(save(tmp_path.parent / "x.png").read_bytes())
    ids = data.folder(root=tmp_path).ids + data.folder(root=tmp_path, split="test").ids
    assert len(set(ids)) == 2 and all(i.encode("utf-8") for i in ids)


def test_folders_with_nothing_to_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no root given"):
        data.folder()
    with pytest.raises(BadInput, match="no usable images"):
        data.folder(root=tmp_path)
    with pytest.raises(BadInput, match="is a file"):
        data.folder(root=save(tmp_path / "one.png"))
    with pytest.raises(BadInput, match="holds one image"):
        data.folder(root=tmp_path, split="test")
    (tmp_path / "one.png").write_text("broken")
    with pytest.raises(BadInput, match=r"1 things skipped, first one\.png: not a readable image"):
        data.folder(root=tmp_path)


# --- arrays ------------------------------------------------------------------------------------------------------


def savez(path: Path, **content: object) -> Path:
    np.savez(path / "a.npz", **content)  # type: ignore[arg-type]
    return path / "a.npz"


@pytest.mark.parametrize(
    ("shape", "to_planes"),
    [
        ((10, 6, 6), lambda a: a[:, None]),
        ((10, 6, 6, 1), lambda a: a.transpose(0, 3, 1, 2)),
        ((10, 6, 6, 3), lambda a: a.transpose(0, 3, 1, 2)),
        ((10, 1, 6, 6), lambda a: a),
        ((10, 3, 6, 6), lambda a: a),
        ((10, 3, 3, 3), lambda a: a.transpose(0, 3, 1, 2)),  # both would do: channels last
    ],
)
def test_every_layout_of_arrays_is_read(
    shape: tuple[int, ...], to_planes: Callable[[np.ndarray], np.ndarray], tmp_path: Path
) -> None:
    images = noise(*shape)
    np.save(tmp_path / "a.npy", images)
    for split, count in (("train", 8), ("test", 2)):
        d = data.arrays(root=tmp_path / "a.npy", split=split)
        assert len(d) == count and d.labels is None and d.classes is None
        assert np.array_equal(d.images[:].numpy(), to_planes(images)[[int(i) for i in d.ids]])


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_floats_from_0_to_1_are_bytes_over_255(kind: type, tmp_path: Path) -> None:
    images = noise(4, 16, 16)
    path = savez(tmp_path, images=(images / 255).astype(kind), test_images=images)
    assert np.array_equal(data.arrays(root=path).images[:][:, 0].numpy(), images)


def test_arrays_with_a_test_set_keep_it(tmp_path: Path) -> None:
    a, b = noise(4, 5, 5), noise(3, 5, 5, seed=1)
    path = savez(tmp_path, train_images=a, test_images=b, train_labels=[0, 5, 5, 0], test_labels=[7, 0, 5])
    train, test = data.arrays(root=path), data.arrays(root=path, split="test")
    assert np.array_equal(train.images[:][:, 0].numpy(), a) and np.array_equal(test.images[:][:, 0].numpy(), b)
    assert train.classes == test.classes == ["0", "5", "7"]
    assert train.labels is not None and train.labels.tolist() == [0, 1, 1, 0]
    assert test.labels is not None and test.labels.tolist() == [2, 0, 1] and test.ids == ["0", "1", "2"]


def test_arrays_take_class_names(tmp_path: Path) -> None:
    path = savez(tmp_path, images=noise(5, 4, 4), labels=np.array([0, 1, 2, 1, 0], np.uint8), classes=["a", "b", "c"])
    d = data.arrays(root=path)
    assert d.classes == ["a", "b", "c"] and d.labels is not None
    assert d.labels.tolist() == [[0, 1, 2, 1, 0][int(i)] for i in d.ids]


def test_arrays_that_are_not_square_need_a_size(tmp_path: Path) -> None:
    images = noise(2, 10, 20, 3)
    path = savez(tmp_path, images=images, test_images=images)
    with pytest.raises(BadInput, match="10 x 20; pass image_size"):
        data.arrays(root=path)
    d = data.arrays(root=path, image_size=6)
    whole = Image.fromarray(images[1]).resize((12, 6), BICUBIC)
    assert d.images.shape == (2, 3, 6, 6)
    assert np.array_equal(d.images[1].permute(1, 2, 0).numpy(), np.asarray(whole.crop((3, 0, 9, 6))))


def test_what_is_not_used_in_arrays_is_listed(tmp_path: Path) -> None:
    path = savez(tmp_path, images=noise(5, 4, 4), classes=["a"], author=np.array("me"))
    assert [s.split(":")[0] for s in data.arrays(root=path).skipped] == ["author", "classes"]
    with pytest.raises(BadInput, match="author"):
        data.arrays(root=path, strict=True)


GOOD = noise(5, 4, 4)
NOT_FINITE = np.zeros((5, 4, 4, 3))
NOT_FINITE[2, 1, 3, 0], NOT_FINITE[4, 0, 0, 0] = np.nan, np.inf


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"images": NOT_FINITE}, "2 NaN or infinite pixels, the first in image 2 .channel 0, row 1, column 3"),
        ({"images": GOOD * 1.0}, "values from [0-9]+ to [0-9]+; floats must be from 0 to 1"),
        ({"images": GOOD / 255 - 0.5}, "values from -0"),
        ({"images": GOOD.astype(np.int64)}, "int64; save it as uint8"),
        ({"images": noise(5, 4)}, r"shape \(5, 4\)"),
        ({"images": noise(5, 4, 4, 2)}, r"shape \(5, 4, 4, 2\)"),
        ({"images": noise(0, 4, 4)}, "no pixels"),
        ({"images": noise(4, 5, 3)}, "5 x 3; pass image_size"),
        ({"images": np.array([{}, None], dtype=object)}, "Python objects .a pickle., which are never loaded"),
        ({"pictures": GOOD}, "neither images nor train_images .it has pictures."),
        ({"test_images": GOOD}, "neither images nor train_images"),
        ({"images": GOOD, "train_images": GOOD}, "both images and train_images"),
        ({"images": GOOD, "labels": np.arange(4)}, "4 labels for 5 images"),
        ({"images": GOOD, "labels": np.zeros(5)}, "float64 of shape"),
        ({"images": GOOD, "labels": np.zeros((5, 1), int)}, r"shape \(5, 1\)"),
        ({"images": GOOD, "labels": np.array([0, 1, -1, 0, 0])}, "has -1; number the classes from 0"),
        ({"images": GOOD, "labels": np.arange(5), "classes": ["a", "b"]}, "has 4, but there are 2 classes"),
        ({"images": GOOD, "labels": np.arange(5), "classes": [1, 2, 3, 4, 5]}, "list of names"),
        ({"images": GOOD, "labels": np.arange(5), "classes": list("aabcd")}, "share a name"),
    ],
)
def test_arrays_that_make_no_sense_are_refused(content: dict[str, object], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=sentence):
        data.arrays(root=savez(tmp_path, **content))


def test_files_that_are_not_arrays_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no root given"):
        data.arrays()
    with pytest.raises(BadInput, match="is not a file"):
        data.arrays(root=tmp_path)
    path = savez(tmp_path, images=GOOD)
    whole = path.read_bytes()
    np.save(tmp_path / "b.npy", GOOD)
    cut = (tmp_path / "b.npy").read_bytes()[:-5]
    for content, sentence in [
        (b"", "damaged"),
        (whole[: len(whole) // 2], "damaged"),
        (cut, "damaged"),
        (b"words, not numbers", "neither .npy nor .npz"),
        (b"\x80\x04N.", "neither .npy nor .npz"),
    ]:
        path.write_bytes(content)
        with pytest.raises(BadInput, match=f"a.npz.*{sentence}"):
            data.arrays(root=path)


def test_one_array_image_leaves_no_test_split(tmp_path: Path) -> None:
    path = savez(tmp_path, images=GOOD[:1])
    assert len(data.arrays(root=path)) == 1
    with pytest.raises(BadInput, match="holds one image"):
        data.arrays(root=path, split="test")


def test_vectors_are_told_from_images(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.zeros((5, 64)))
    with pytest.raises(BadInput, match=r"\(5, 64\); these are vectors, and what learns here reads images; give N x H"):
        data.arrays(root=tmp_path / "e.npy")
