"""The report shows the right images, says nothing it did not measure, and needs nothing but itself."""

import base64
import io
import math
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from PIL import Image, ImageColor

from nonneg import explain, figures, report
from nonneg.errors import BadInput
from nonneg.features import Features
from nonneg.report import Column

ALWAYS = ("What each feature looks at", "Features drawn at random", "Activation matrix", "Sparsity: active features")
ALWAYS += ("Correlation between features", "Expected activation", "Definitions")
LABELLED = ("Class consistency of each feature", "Linear probe and k-NN accuracy")
VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """What a browser sees: text, tags, attributes, and pictures decoded by Pillow."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.raw = path.read_text(encoding="utf-8")
        self.feed(self.raw)
        self.close()
        assert not self.open
        self.text = " ".join(" ".join(self.words).split())
        data = [v.removeprefix("data:image/png;base64,") for k, v in self.attributes if k == "src"]
        self.pictures = [Image.open(io.BytesIO(base64.b64decode(d, validate=True))) for d in data]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(k, v or "") for k, v in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.words.append(data)


def features(z: np.ndarray, labels: np.ndarray | None) -> Features:
    z = z.astype(np.float32)
    return Features(z[:, :2].copy(), sp.csr_array(z), labels, [f"image-{i}" for i in range(len(z))])


def column(
    *,
    title: str = "NCL",
    n: int = 70,
    d: int = 24,
    live: int = 24,
    signed: bool = False,
    channels: int = 1,
    seed: int = 0,
) -> Column:
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(2 * n, d))
    z = z if signed else np.maximum(z - 0.8, 0)
    z[:, live:] = 0
    labels = rng.integers(0, 4, 2 * n)
    share = {"value": 0.5, "definition": "a share", "threshold": 1e-5}
    names = ("sparsity", "class_consistency", "top10_consistency", "linear_probe", "knn", "linear_probe_z", "knn_z")
    measured = dict.fromkeys((*names, "chance", "top10_chance"), share)
    measured |= {"live_features": {"value": live, "definition": "a count"}, "features": {"value": d, "definition": "D"}}
    measured |= {
        "effective_rank": {"value": 12.345, "definition": "a rank"},
        "zero_rows": {"value": 0, "definition": ""},
    }
    images = torch.from_numpy(rng.integers(0, 256, (n, channels, 8, 8), dtype=np.uint8))
    log = [
        {"epoch": e, "loss": 5 / e, "zeros": 0.8, "alive": d, "zero_rows": 0, "lr": 0.1, "seconds": 1} for e in (1, 2)
    ]
    train, test = features(z[:n], labels[:n]), features(z[n:], labels[n:])
    return Column(title, "map relu", train, test, measured, images, ["ant", "bee", "cat", "dog"], [], log)


def unlabelled(c: Column) -> Column:
    kept = {k: v for k, v in c.metrics.items() if k in ("sparsity", "live_features", "features", "effective_rank")}
    without = {"train": replace(c.train, labels=None), "test": replace(c.test, labels=None)}
    return replace(c, metrics=kept, classes=None, **without)


def render(columns: list[Column], folder: Path, *, seed: int = 0) -> Page:
    report.write(columns, folder / "report.html", title="A title", intro="An introduction.", seed=seed)
    return Page(folder / "report.html")


def flat(values: list[list[float]], *, channels: int = 1, size: int = 8) -> Column:
    """Image i is all 10 (i + 1); z is given."""
    z = np.array(values)
    images = torch.arange(1, len(z) + 1).mul(10).to(torch.uint8).view(-1, 1, 1, 1).expand(-1, channels, size, size)
    return replace(unlabelled(column()), train=features(z, None), test=features(z, None), images=images.contiguous())


def shown(grid: Image.Image, *, rows: int, k: int) -> list[list[int]]:
    """The image number at each place of a grid of flat 48-pixel images; -1 where the place is empty."""
    pixels = np.asarray(grid)
    height, width = pixels.shape[0] // rows, (pixels.shape[1] + 4) // k
    places = [[pixels[r * height : r * height + 48, c * width : c * width + 48] for c in range(k)] for r in range(rows)]
    assert all(len(np.unique(p)) <= 3 for row in places for p in row)  # one colour each: nothing is cut or blended
    return [[-1 if int(p[0, 0, 0]) > 240 else int(p[0, 0, 0]) // 10 - 1 for p in row] for row in places]


def test_a_grid_shows_the_images_of_largest_activation_in_order() -> None:
    c = flat([[0.0, 3.0], [2.0, 0.0], [9.0, 1.0], [5.0, 2.0]])
    grid = figures.feature_grid(c, [0, 1], k=3)
    assert shown(grid, rows=2, k=3) == [[2, 3, 1], [0, 3, 2]]
    assert np.asarray(grid)[:, 48:52].min() == 255  # white between the images


def test_an_image_on_which_a_feature_is_off_is_never_shown() -> None:
    assert shown(figures.feature_grid(flat([[0.0], [4.0], [1e-7], [6.0]]), [0], k=4), rows=1, k=4) == [[3, 1, -1, -1]]


def test_signed_features_are_ranked_by_absolute_value_and_negative_ones_are_marked() -> None:
    grid = figures.feature_grid(flat([[1.0], [-7.0], [3.0]]), [0], k=3)
    assert shown(grid, rows=1, k=3) == [[1, 2, 0]]
    below = np.asarray(grid)[48:]
    coloured = [bool((below[:, 52 * i : 52 * i + 48] < 255).any()) for i in range(3)]
    assert coloured == [True, False, False]


def test_votes_of_signed_features_show_the_mark_too() -> None:
    said = {"name": "0", "said": "a", "runner_up": "b", "truth": None, "probability": 0.5}
    votes = {"logit": 1.0, "runner_up_logit": 0.0, "votes": [1.0], "against": [0.0], "rest": 0.0, "rest_against": 0.0}
    e = explain.Explained(**said, **votes, features=[0])  # pyright: ignore[reportArgumentType]
    for values, marked in (([[1.0], [-7.0], [3.0]], True), ([[1.0], [7.0], [3.0]], False)):
        c = flat(values)
        picture = np.asarray(Image.open(io.BytesIO(explain.draw([e], c.images[:1], c))).convert("RGB"))
        assert bool((picture == ImageColor.getrgb(figures.NEGATIVE)).all(axis=2).any()) == marked


def test_of_equal_activations_the_first_image_goes_first() -> None:
    assert figures.top_images(flat([[2.0], [5.0], [5.0], [5.0]]), [0], 2)[0].tolist() == [1, 2]


def test_top_images_match_a_full_sort() -> None:
    c = column(signed=True, n=200, seed=3)
    dense = np.abs(c.test.z.toarray())
    for feature, images in zip((7, 0, 23), figures.top_images(c, [7, 0, 23], 10), strict=True):
        assert images.tolist() == sorted(range(200), key=lambda i, f=feature: (-dense[i, f], i))[:10]


@pytest.mark.parametrize(("size", "side"), [(1, 48), (8, 48), (23, 46), (24, 24), (32, 32), (48, 48), (200, 48)])
def test_small_images_are_enlarged_by_whole_factors_and_large_ones_reduced(size: int, side: int) -> None:
    grid = figures.feature_grid(flat([[1.0]], size=size), [0], k=1)
    assert grid.size == (side, side + 4)


def test_pixels_of_small_images_stay_sharp_and_colours_stay_what_they_are() -> None:
    c = flat([[1.0]], channels=3)
    c = replace(
        c, images=torch.randint(0, 256, (1, 3, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    )
    pixels = np.asarray(figures.feature_grid(c, [0], k=1))[:48]
    assert (pixels == c.images[0].permute(1, 2, 0).numpy().repeat(6, axis=0).repeat(6, axis=1)).all()


def test_features_are_ranked_on_training_images_among_those_live_on_test_images() -> None:
    train = np.array([[1.0, 5.0, 3.0], [1.0, 5.0, 3.0]])
    test = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 2.0]])
    c = replace(flat([[1.0], [1.0]]), train=features(train, None), test=features(test, None))
    assert c.order.tolist() == [1, 2, 0]
    assert figures.spread_live(c, 12).tolist() == [2, 0]


def test_shown_features_are_evenly_spaced_from_the_most_used_to_the_least() -> None:
    c = flat(np.repeat(np.eye(12), np.arange(12), axis=0).tolist())  # feature j fires on j images
    assert figures.spread_live(c, 11).tolist() == list(range(11, 0, -1))
    assert figures.spread_live(c, 3).tolist() == [10, 6, 2]  # of the ranks 0 to 10, the middle ones of thirds
    assert figures.spread_live(c, 1).tolist() == [6]
    assert figures.spread_live(flat([[0.0]]), 3).tolist() == []


def test_the_majority_class_is_the_most_frequent_one() -> None:
    c = column()
    c = replace(c, test=replace(c.test, labels=np.array([3, 1, 1, 0, 3, 1])))
    assert figures.majority(c, np.array([0, 1, 2, 3])) == ("bee", 2)
    assert figures.majority(replace(c, classes=["ant"]), np.array([0, 4])) == ("3", 2)
    assert figures.majority(unlabelled(c), np.array([0])) is None
    assert figures.majority(c, np.array([], dtype=int)) is None


def test_sampled_rows_are_spread_over_the_classes_and_sorted_by_class() -> None:
    labels = np.array([0] * 50 + [1] * 3 + [2] * 50)[np.random.default_rng(0).permutation(103)]
    rows = figures.sample_rows(labels, 13, total=103, seed=0)
    assert labels[rows].tolist() == sorted(labels[rows]) and len(set(rows.tolist())) == 13
    assert np.bincount(labels[rows]).tolist() == [5, 3, 5]
    assert sorted(figures.sample_rows(labels, 60, total=103, seed=1)) != sorted(
        figures.sample_rows(labels, 60, total=103, seed=2)
    )
    assert figures.sample_rows(None, 60, total=7, seed=0).tolist() == list(range(7))


def test_rows_are_divided_by_their_largest_absolute_value_and_zero_rows_stay() -> None:
    c = flat([[2.0, -4.0, 1.0], [0.0, 0.0, 0.0]])
    scaled = figures.scaled_rows(c, np.array([0, 1]), np.array([2, 0]))
    assert scaled.tolist() == [[0.25, 0.5], [0.0, 0.0]]


def test_zero_is_exactly_white_and_the_scale_is_symmetric() -> None:
    assert figures.SCALE(0.5)[:3] == (1, 1, 1)
    assert figures.colours([column(signed=True), column(), column(signed=True)])[::2] == list(figures.SIGNED_RUNS[:2])


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    cl, ncl = column(title="CL", signed=True), column()
    return render([replace(cl, skipped=["a broken file.png"]), ncl], tmp_path_factory.mktemp("report"))


def test_the_report_has_every_section(page: Page) -> None:
    for title in (*ALWAYS, *LABELLED, "Training", "Skipped inputs", "A title", "An introduction.", "a broken file.png"):
        assert title in page.text
    anchors = {v.removeprefix("#") for k, v in page.attributes if k == "href" and v.startswith("#")}
    assert anchors == {v for k, v in page.attributes if k == "id"}


def test_the_report_loads_nothing(page: Page) -> None:
    assert not set(page.tags) & {"script", "iframe", "object", "embed", "form"}
    for name, value in page.attributes:
        assert not name.startswith("on")
        assert name not in ("src", "href") or value.startswith(("data:", "#"))
    style = page.raw[page.raw.index("<style>") : page.raw.index("</style>")]
    assert "url(" not in style and "@import" not in style and "://" not in page.raw


def test_the_pictures_are_whole_and_of_one_size_for_each_run(page: Page) -> None:
    strips, charts = page.pictures[:48], page.pictures[48:]
    assert {p.size for p in strips} == {(10 * 52 - 4, 52)}
    assert len(charts) == 6 * 2 + 3
    assert all(a.size == b.size for a, b in zip(charts[:12:2], charts[1:12:2], strict=True))
    for picture in page.pictures:
        picture.load()


def test_the_numbers_are_the_measured_ones(page: Page) -> None:
    assert "Sparsity 50.0 % 50.0 %" in page.text
    assert "Effective rank 12.3 12.3" in page.text
    assert "Live features 24 of 24 24 of 24" in page.text
    assert "Images with all features zero 0 of 70 0 of 70" in page.text
    assert "a share threshold 1e-05" in page.text
    assert ("title", "a share") in page.attributes


def test_the_report_is_a_function_of_its_inputs_and_its_seed(tmp_path: Path) -> None:
    c = replace(unlabelled(column(live=15)), log=[])
    first = render([c], tmp_path)
    assert sum(p.size == (516, 52) for p in first.pictures) == 24  # 15 are live, 12 are shown, in two sections
    assert render([c], tmp_path).raw == first.raw
    assert render([c], tmp_path, seed=1).raw.replace("seed 1", "seed 0") != first.raw


def test_without_labels_nothing_is_said_about_classes(tmp_path: Path) -> None:
    page = render([replace(unlabelled(column()), log=[])], tmp_path)
    assert all(title in page.text for title in ALWAYS)
    for absent in (*LABELLED, "Training", "Skipped inputs", "chance", "sorted by class", "–"):
        assert absent not in page.text


def test_one_run_without_labels_beside_one_with(tmp_path: Path) -> None:
    page = render([column(), unlabelled(column(title="bare"))], tmp_path)
    assert "No labels." in page.text and "Class consistency 50.0 % – 50.0 % / –" in page.text


@pytest.mark.parametrize("live", [0, 1])
def test_few_live_features_give_fewer_rows(tmp_path: Path, live: int) -> None:
    page = render([column(live=live, channels=3)], tmp_path)
    assert sum(p.size == (516, 52) for p in page.pictures) == 2 * min(live, 12)
    assert ("No feature fires on any test image." in page.text) == (live == 0)
    assert f"{live} of 24 features are live, {24 - live} dead" in page.text


def test_few_images_and_three_runs_of_different_width(tmp_path: Path) -> None:
    page = render([column(n=1, signed=True), column(n=3, d=3, live=3), column(n=2, d=600, live=600)], tmp_path)
    for text in ("1 image × 24 features", "3 images × 3 features", "2 images × 512 features"):
        assert text in page.text


def test_names_from_outside_are_text_and_nothing_else(tmp_path: Path) -> None:
    nasty = '"><img src=x onerror=alert(1)>\u202e&amp;.png'
    c = replace(
        column(title=nasty),
        subtitle=nasty,
        skipped=[nasty, "not\udcffutf8.png"],
        classes=[nasty, "$\\frac$", "猫", "\n"],
    )
    c = replace(c, test=replace(c.test, ids=[nasty] * 70), metrics=c.metrics | {"x": {"value": 1, "definition": nasty}})
    page = render([c], tmp_path)
    assert all(v.startswith("data:") for k, v in page.attributes if k == "src")
    assert not any(name == "onerror" for name, _ in page.attributes)
    assert nasty in page.text and "not\\udcffutf8.png" in page.text
    assert figures.hero([c])  # the chart font knows no 猫, and dollars make no mathematics


def test_matched_features_stand_in_the_same_row(tmp_path: Path) -> None:
    first = column(seed=1)
    places = np.random.default_rng(0).permutation(24)
    turned = [
        Features(f.h, sp.csr_array(3 * f.z.toarray()[:, places]), f.labels, f.ids) for f in (first.train, first.test)
    ]
    second = replace(first, title="again", train=turned[0], test=turned[1])
    views = [report.View(c, "#000000", 300) for c in (first, second)]
    section = report.matched(views, 0)
    assert section is not None and "again: mean |cosine| 1.00" in section.see
    rows = [
        [int(strip.ids.split(":")[0].removeprefix("feature ")) for strip in panel.strips] for panel in section.panels
    ]
    assert len(rows[0]) > 5 and rows[0] == [places[i] for i in rows[1]]
    assert all(strip.about.endswith("alike 1.00") for panel in section.panels for strip in panel.strips)
    assert "The same features in another run?" in render([first, second], tmp_path).text


def test_counterparts_are_the_permuted_features_evenly_spaced_by_how_alike_they_are() -> None:
    first = column(seed=1)
    places, noise = np.random.default_rng(0).permutation(24), np.random.default_rng(1)
    z = first.test.z.toarray()
    z = z + np.linspace(0, 2, 24) * noise.random(z.shape) * (z > 0)  # the further right, the less alike
    second = replace(first, test=replace(first.test, z=sp.csr_array(z[:, places])))
    found = figures.counterparts([first, second], 5)
    assert found is not None
    features, alike = found
    assert [places[i] for i in features[1]] == features[0].tolist() and len(features[0]) == 5
    assert (np.diff(alike[0]) <= 0).all() and alike[0].tolist() == alike[1].tolist()
    dead = replace(first, test=replace(first.test, z=sp.csr_array(np.zeros_like(z))))
    assert figures.counterparts([first, dead], 5) is None and figures.same_features([first, dead]) is None
    drawn = Image.open(io.BytesIO(figures.same_features([first, second], rows=5) or b""))
    assert drawn.width == 1600 and drawn.height > 300


def test_features_are_matched_only_between_runs_of_one_kind_on_the_same_images() -> None:
    mine, cl = column(), column(title="CL", signed=True)
    other = replace(mine, test=replace(mine.test, ids=[f"x{i}" for i in range(70)]))
    for pair in ([mine], [mine, cl], [mine, other]):
        assert report.matched([report.View(c, "#000000", 300) for c in pair], 0) is None


def test_what_is_not_a_number_is_a_dash(tmp_path: Path) -> None:
    gone = {"value": None, "definition": "undefined here", "k": math.nan}
    c = column()
    c = replace(c, metrics=c.metrics | {"knn": gone, "effective_rank": gone | {"value": math.nan}})
    c = replace(c, log=[{"epoch": 1, "loss": math.nan}, {"epoch": 2, "loss": None}, {"epoch": 3, "zeros": 0.5}])
    page = render([c], tmp_path)
    assert not re.search(r"\b(nan|NaN|None|inf)\b", page.text)
    assert "k-NN, backbone h – 50.0 %" in page.text and "Effective rank –" in page.text


def test_a_chart_of_training_needs_numbers() -> None:
    def draw(log: list[dict]) -> bytes | None:
        return figures.training([log], "loss", colours=["#000000"], width=370, ylabel="loss", shares=False)

    assert draw([]) is None and draw([{"epoch": 1, "loss": math.inf}]) is None
    assert draw([{"epoch": 1, "loss": -2.0}]) and draw([{"epoch": 1, "loss": 0.0}])


def test_parts_that_do_not_belong_together_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    c = column()
    bad = [
        ([], "at least one"),
        ([replace(c, images=c.images[:5])], "70 rows of test features but 5 images"),
        ([replace(c, images=c.images.float())], "uint8"),
        ([replace(c, test=replace(c.test, labels=np.zeros(3, dtype=int)))], "3 labels"),
        ([replace(c, train=column(d=5, live=5).train)], "5 training features but 24 test features"),
        ([replace(c, test=features(np.zeros((0, 24)), None), images=c.images[:0])], "no test images"),
    ]
    for columns, sentence in bad:
        with pytest.raises(BadInput, match=sentence):
            render(columns, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_hero_holds_the_grid_pixel_by_pixel() -> None:
    c = column(channels=3)
    hero = np.asarray(Image.open(io.BytesIO(figures.hero([c, column(signed=True)]))).convert("RGB"))
    assert hero.shape[1] == 2000
    grid = np.asarray(figures.feature_grid(c, figures.spread_live(c, 8), size=72))
    assert (hero[152 : 152 + grid.shape[0], 28 : 28 + grid.shape[1]] == grid).all()
    assert Image.open(io.BytesIO(figures.hero([unlabelled(column(live=2, n=5))]))).width == 1000
