"""Sprites against shapes drawn another way, their grid, and files in the layout of the original."""

import inspect
import io
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from nonneg.data.digits import digits
from nonneg.data.sprites import (
    CENTRE,
    ELLIPSE,
    FACTORS,
    GRID,
    ORIGINAL,
    SHAPES,
    SQUARE,
    area_mean,
    factors_of,
    render,
    sample,
    sprites,
    to_factors,
    to_index,
)
from nonneg.errors import BadInput

ROOM = sprites.__globals__  # the module itself, whose name the function takes inside the package


def some(n: int, seed: int = 0) -> torch.Tensor:
    """Factors of n different sprites."""
    return to_factors(torch.from_numpy(np.random.default_rng(seed).choice(GRID, n, replace=False)))


# --- the grid ----------------------------------------------------------------------------------------------------


def test_the_grid_is_that_of_dsprites() -> None:
    assert list(FACTORS.items()) == [("shape", 3), ("scale", 6), ("orientation", 40), ("x", 32), ("y", 32)]
    assert GRID == 737_280


def test_places_and_factors_are_each_others_inverse() -> None:
    places = torch.arange(GRID)
    factors = to_factors(places)
    assert torch.equal(to_index(factors), places)
    assert factors.numpy().T.tolist()[4][:34] == [*range(32), 0, 1]  # y runs fastest
    expected = np.stack(np.unravel_index(np.arange(GRID), tuple(FACTORS.values())), axis=1)
    assert np.array_equal(factors.numpy(), expected)


def test_ids_carry_the_factors() -> None:
    ids = ["0", "33", str(GRID - 1)]
    assert factors_of(ids).tolist() == [[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [2, 5, 39, 31, 31]]
    assert factors_of([]).shape == (0, 5)
    for strange in ("cat/1.png", str(GRID), "-1", "1.5", "", "²"):
        with pytest.raises(BadInput, match="no place on the grid"):
            factors_of(["0", strange])


# --- pixels ------------------------------------------------------------------------------------------------------


def centre(image: np.ndarray) -> np.ndarray:
    """Column and row of the centre of mass."""
    rows, columns = np.nonzero(image)
    return np.array([columns.mean(), rows.mean()])


def drawn(shape: int, scale: int, orientation: int, x: int, y: int) -> np.ndarray:
    """A square or an ellipse as a polygon that Pillow fills at eight times the size."""
    zoom, size = 8, 0.5 + 0.1 * scale
    angle, turn = np.linspace(0, 2 * math.pi, 40)[orientation], np.linspace(0, 2 * math.pi, 400)
    square = np.array([(1, 1), (-1, 1), (-1, -1), (1, -1)]) * SQUARE
    outline = square if shape == 0 else np.stack([np.cos(turn), np.sin(turn)], 1) * ELLIPSE
    right = outline @ [math.cos(angle), -math.sin(angle)]
    up = outline @ [math.sin(angle), math.cos(angle)]
    column, row = 16 + x + CENTRE[0] + size * right, 16 + y - CENTRE[1] - size * up
    canvas = Image.new("L", (64 * zoom, 64 * zoom))
    ImageDraw.Draw(canvas).polygon(
        [((c + 0.5) * zoom, (r + 0.5) * zoom) for c, r in zip(column, row, strict=True)], 255
    )
    return np.asarray(canvas).reshape(64, zoom, 64, zoom).mean((1, 3))


@pytest.mark.parametrize("shape", [0, 1], ids=SHAPES[:2])
def test_squares_and_ellipses_match_polygons_filled_by_pillow(shape: int) -> None:
    factors = some(60)
    factors[:, 0] = shape
    for image, row in zip(render(factors)[:, 0].numpy(), factors.tolist(), strict=True):
        reference = drawn(*row)
        sure = (reference < 60) | (reference > 195)  # a pixel that the outline halves may fall either way
        assert sure.mean() > 0.97 and np.array_equal(image[sure] > 127, reference[sure] > 127)


def test_a_heart_has_two_lobes_above_one_point() -> None:
    image = render(torch.tensor([[2, 5, 0, 16, 16]]))[0, 0].numpy() > 0
    rows = np.flatnonzero(image.any(1))
    runs = [int(np.count_nonzero(np.diff(image[r].astype(int)) == 1)) for r in rows]
    assert runs[0] == 2 and set(runs[4:]) == {1}
    widths = image[rows].sum(1)
    assert widths[-1] <= 3 and widths.argmax() < len(rows) / 2


def test_sprites_are_white_on_black_and_never_cut_off() -> None:
    factors = to_factors(torch.arange(GRID).view(720, 32, 32)[:, ::31, ::31].reshape(-1))  # all, in the four corners
    images = render(factors)
    assert images.dtype == torch.uint8 and images.shape == (2880, 1, 64, 64)
    assert set(images.unique().tolist()) == {0, 255}
    area = (images > 0).sum((1, 2, 3)).view(720, 4)
    assert (area == area[:, :1]).all() and area.min() > 50


def test_every_factor_shows() -> None:
    """Places of the grid give different pixels, but for orientation 39, which is 2 pi and looks like 0."""
    middle = to_factors(torch.arange(GRID).view(720, 32, 32)[:, 16, 16])
    images = render(middle)[:, 0].numpy()
    boxes = set()
    for image in images:  # without the empty rows and columns: a move cannot make two of them equal either
        rows, columns = np.flatnonzero(image.any(1)), np.flatnonzero(image.any(0))
        box = image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        boxes.add((box.shape, box.tobytes()))
    assert len(boxes) == 3 * 6 * 39
    assert np.array_equal(images[middle[:, 2] == 0], images[middle[:, 2] == 39])


def test_x_moves_right_y_moves_down_and_scale_grows() -> None:
    base = torch.tensor([[2, 3, 7, 10, 12]])
    image = render(base)[0, 0].numpy()
    for column, move in ((3, [1, 0]), (4, [0, 1])):
        moved = base.clone()
        moved[0, column] += 5
        assert centre(render(moved)[0, 0].numpy()) - centre(image) == pytest.approx(5 * np.array(move))
    areas = [(render(torch.tensor([[s, k, 7, 10, 12]])) > 0).sum().item() for s in range(3) for k in (0, 5)]
    assert [areas[i + 1] / areas[i] for i in (0, 2, 4)] == pytest.approx([4, 4, 4], rel=0.08)


def test_order_and_repetition_of_what_is_asked_do_not_matter() -> None:
    factors = some(20)
    images, order = render(factors), torch.tensor([3, 3, 19, 0])
    assert torch.equal(render(factors[order]), images[order])
    assert torch.equal(render(factors.to(torch.int32)), images)
    assert render(factors[:0]).shape == (0, 1, 64, 64)


def test_area_mean_averages_blocks() -> None:
    images = render(some(300))  # more than are worked on at a time
    expected = images.numpy().reshape(300, 1, 32, 2, 32, 2).mean((3, 5)).round()
    assert np.array_equal(area_mean(images, 32).numpy(), expected)
    assert np.array_equal(render(some(300), image_size=32).numpy(), expected)
    assert area_mean(images, 64) is images
    mean = area_mean(images, 12).float().mean((1, 2, 3))
    assert mean.numpy() == pytest.approx(images.float().mean((1, 2, 3)).numpy(), rel=0.15)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_renders_the_same() -> None:
    assert torch.equal(render(some(100).cuda(), image_size=32).cpu(), render(some(100), image_size=32))


@pytest.mark.parametrize(
    ("factors", "sentence"),
    [
        (torch.zeros(3, 4, dtype=torch.int64), r"N x 5 .* shape \(3, 4\)"),
        (torch.zeros(5, dtype=torch.int64), "N x 5"),
        (torch.zeros(3, 5), "torch.float32"),
        (torch.tensor([[0, 0, 40, 0, 0]]), "orientation 39"),
        (torch.tensor([[0, 0, 0, -1, 0]]), "off the grid"),
    ],
)
def test_factors_off_the_grid_are_refused(factors: torch.Tensor, sentence: str) -> None:
    with pytest.raises(BadInput, match=sentence):
        render(factors)


# --- the data set ------------------------------------------------------------------------------------------------


def test_the_loader_has_the_signature_of_every_loader() -> None:
    assert inspect.signature(sprites) == inspect.signature(digits)


def test_splits_are_a_fixed_disjoint_sample() -> None:
    train, test = sample(GRID, "train"), sample(GRID, "test")
    assert (len(train), len(test)) == (50_000, 10_000) and len(np.union1d(train, test)) == 60_000
    assert train[:4].tolist() == [125674, 436028, 227828, 625170]  # features kept on disk rely on it
    assert test[:4].tolist() == [334541, 499329, 53679, 195208]
    share = np.bincount(factors_of([str(i) for i in test[:1000]])[:, 0]) / 1000
    assert share == pytest.approx(1 / 3, abs=0.05)  # the first thousand are a fair sample too


def test_the_rendered_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROOM, "TRAIN", 300)
    monkeypatch.setitem(ROOM, "TEST", 100)
    train, test = sprites(split="train", image_size=32), sprites(split="test")
    assert (train.name, len(train), len(test)) == ("sprites", 300, 100)
    assert train.images.shape == (300, 1, 32, 32) and test.images.shape == (100, 1, 64, 64)
    assert train.classes == ["square", "ellipse", "heart"] and not set(train.ids) & set(test.ids)
    factors = torch.from_numpy(factors_of(test.ids))
    assert test.labels is not None and torch.equal(test.labels, factors[:, 0])
    assert isinstance(test.images, torch.Tensor) and torch.equal(test.images, render(factors))
    few = test.subset([5, 1])
    assert np.array_equal(factors_of(few.ids), factors[[5, 1]].numpy())
    with pytest.raises(BadInput, match="did you mean 'test'"):
        sprites(split="tset")
    with pytest.raises(BadInput, match="image_size is 0"):
        sprites(image_size=0)


# --- the original file -------------------------------------------------------------------------------------------


def arrays(n: int = 30) -> dict[str, np.ndarray]:
    """n sprites in the layout of the original file, pickle and all."""
    factors = some(n)
    return {
        "metadata": np.array({"author": "somebody"}, dtype=object),
        "imgs": (render(factors)[:, 0] // 255).numpy(),
        "latents_values": np.zeros((n, 6)),
        "latents_classes": np.insert(factors.numpy(), 0, 0, axis=1),
    }


def write(path: Path, tables: dict[str, Any]) -> Path:
    np.savez_compressed(path, **tables)
    return path


@pytest.mark.parametrize("whole", [True, False], ids=["file", "folder"])
def test_the_original_file_is_read_without_its_pickle(tmp_path: Path, whole: bool) -> None:
    path = write(tmp_path / ORIGINAL, arrays())
    train, test = (sprites(split=s, root=path if whole else tmp_path) for s in ("train", "test"))
    assert (len(train), len(test)) == (25, 5)
    by_row = [str(i) for i in to_index(some(30)).tolist()]
    assert sorted(train.ids + test.ids) == sorted(by_row) and train.ids != by_row[:25]
    for part in (train, test):
        factors = torch.from_numpy(factors_of(part.ids))
        assert isinstance(part.images, torch.Tensor) and torch.equal(part.images, render(factors))
        assert part.labels is not None and torch.equal(part.labels, factors[:, 0])


def test_long_files_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ROOM, "CHUNK", 7)
    path = write(tmp_path / "part.npz", arrays(28))  # a whole number of pieces
    test = sprites(split="test", root=path, image_size=16)
    assert torch.equal(test.images[:], render(torch.from_numpy(factors_of(test.ids)), image_size=16))


def without(name: str) -> dict[str, np.ndarray]:
    return {k: v for k, v in arrays().items() if k != name}


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        (lambda: without("imgs"), "lacks an array.*imgs"),
        (lambda: without("latents_classes"), "lacks an array.*latents_classes"),
        (lambda: arrays(5), "holds 5 images; 6 or more"),
        (lambda: arrays() | {"imgs": arrays()["imgs"][:29]}, r"\(29, 64, 64\), but must be uint8 30 x 64 x 64"),
        (lambda: arrays() | {"imgs": arrays()["imgs"].astype(float)}, "float64"),
        (lambda: arrays() | {"imgs": np.asfortranarray(arrays()["imgs"])}, "imgs in"),
        (lambda: arrays() | {"imgs": 255 * arrays()["imgs"]}, "pixels other than 0 and 1"),
        (lambda: arrays() | {"imgs": np.array([{}], dtype=object)}, "object"),
        (lambda: arrays() | {"latents_classes": arrays()["latents_classes"][:, 1:]}, "N x 6"),
        (lambda: arrays() | {"latents_classes": arrays()["latents_classes"] + 1}, "N x 6 below"),
        (lambda: arrays() | {"latents_classes": arrays()["latents_classes"].astype(float)}, "whole numbers"),
        (lambda: arrays() | {"latents_classes": np.zeros((30, 6), dtype=int)}, "two images with the same factors"),
        (lambda: arrays() | {"latents_classes": np.array([{}], dtype=object)}, r"damaged or not an \.npz"),
    ],
)
def test_a_file_of_another_kind_is_refused(tmp_path: Path, tables: Any, sentence: str) -> None:
    path = write(tmp_path / "x.npz", tables())
    with pytest.raises(BadInput, match=sentence) as caught:
        sprites(root=path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    good = write(tmp_path / "good.npz", arrays()).read_bytes()
    with zipfile.ZipFile(io.BytesIO(good)) as archive:
        images, latents = archive.read("imgs.npy"), archive.read("latents_classes.npy")
    broken = bytearray(good)
    at = good.index(b"imgs.npy") + 300
    broken[at : at + 40] = bytes(40)  # inside the compressed pixels
    short = io.BytesIO()
    with zipfile.ZipFile(short, "w") as archive:  # a sound archive of an array that ends early
        archive.writestr("imgs.npy", images[:-10_000])
        archive.writestr("latents_classes.npy", latents)
    for i, content in enumerate((b"", b"text", good[: len(good) // 2], bytes(broken), short.getvalue())):
        path = tmp_path / f"{i}.npz"
        path.write_bytes(content)
        with pytest.raises(BadInput, match=r"damaged or not an \.npz"):
            sprites(root=path)


def test_a_root_that_is_not_there_is_refused_by_its_path(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="nowhere"):
        sprites(root=tmp_path / "nowhere")
    with pytest.raises(BadInput, match=ORIGINAL):
        sprites(root=tmp_path)
