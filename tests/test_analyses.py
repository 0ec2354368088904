"""Questions asked of trained runs: each against the measure it is made of, skipped when answered, drawn from lines."""

import importlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from PIL import Image
from torch import Tensor

from nonneg import (
    analyses,
    asking,
    augment,
    backbones,
    charts,
    corruptions,
    encoder,
    experiments,
    finetune,
    kept_features,
    ledger,
    maps,
    measures,
    metrics,
    on_images,
    probes,
    reproduce,
    selection,
)
from nonneg.analyses import protocol
from nonneg.comparison import Row
from nonneg.errors import BadInput
from nonneg.train import train

RUNS = ("cl-s0", "cl-s1", "ncl-s0", "ncl-s1")
COMMITTED = Path(__file__).parent.parent / "experiments" / "results"


def cifar(root: Path) -> Path:
    """Both CIFARs with few images in their binary layouts; brightness tells the class."""
    rng = np.random.default_rng(0)

    def records(n: int, labels: int) -> bytes:
        pixels = rng.integers(0, 30, (n, 3072))
        return b"".join(
            bytes([i % 10] * labels) + (pixels[i] + 22 * (i % 10)).astype(np.uint8).tobytes() for i in range(n)
        )

    ten, hundred = root / "cifar-10-batches-bin", root / "cifar-100-binary"
    ten.mkdir(parents=True)
    hundred.mkdir()
    for i in range(1, 6):
        (ten / f"data_batch_{i}.bin").write_bytes(records(8, 1))
    (ten / "test_batch.bin").write_bytes(records(30, 1))
    (ten / "batches.meta.txt").write_text("\n".join(f"thing{i}" for i in range(10)))
    for name, n in (("train", 40), ("test", 30)):
        (hundred / f"{name}.bin").write_bytes(records(n, 2))
    (hundred / "fine_label_names.txt").write_text("\n".join(f"kind{i}" for i in range(100)))
    return root


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with data, and four small trained runs as `nonneg reproduce cifar10` would leave them."""
    place = tmp_path_factory.mktemp("place")
    root = cifar(place / "data")
    for name in RUNS:
        run = experiments.find("cifar10").runs[name]
        net = partial(backbones.small_net, width=4)
        small = replace(run, backbone=net, projector=(12, 8), batch_size=16, epochs=2, data_root=root, device="cpu")
        train(small, place / "runs" / "cifar10" / name)
    return place


def ask(place: Path, name: str, **how: object) -> list[Row]:
    given = {"data_root": place / "data", "results": place / "results", "runs": place / "runs"}
    return reproduce.reproduce(name, **{**given, **how})  # type: ignore[arg-type]


def lines(place: Path, name: str) -> dict[str, dict]:
    text = (place / "results" / f"{name}.jsonl").read_text()
    return {line["name"]: line for line in map(json.loads, text.splitlines())}


def subject(place: Path, name: str) -> analyses.Subject:
    return analyses.Subject("cifar10", name, place / "runs" / "cifar10" / name, place / "data")


def find(rows: list[Row], measure: str, method: str) -> Row:
    (row,) = [r for r in rows if r.measure == measure and r.method == method]
    return row


def test_every_analysis_looks_at_experiments_that_exist() -> None:
    assert set(analyses.names()) >= {"bytes", "identifiability", "selection"}
    assert not set(analyses.names()) & set(experiments.names())
    for name in analyses.names():
        found = analyses.find(name)
        assert set(found.of) <= set(experiments.names()) and found.draw({}) is None
        methods = {f"{of}-{m}" for of in found.of for m in experiments.find(of).methods}
        assert all(key in found.table and method in methods for key, method in found.paper)


def test_bytes_is_the_curve_of_each_run_and_its_mean(place: Path) -> None:
    rows = ask(place, "bytes")
    done = lines(place, "bytes")
    assert done.keys() == {f"cifar10-{name}" for name in RUNS}
    values = []
    for name in ("ncl-s0", "ncl-s1"):
        train_z, test = (subject(place, name).features(split) for split in ("train", "test"))
        plan = selection.plan(train_z.z, top=2)
        values.append(metrics.retrieval(plan.codes(test.z).decode(), test.labels)["precision"])
        assert done[f"cifar10-{name}"]["measures"]["top_4"] == pytest.approx(values[-1], abs=1e-6)
    row = find(rows, "precision@10, 2 activations a sample (4 bytes)", "NCL, cifar10")
    assert row.ours == pytest.approx(100 * np.mean(values), abs=1e-3) and row.seeds == 2
    assert row.std == pytest.approx(100 * np.std(values, ddof=1), abs=1e-3)
    with Image.open(place / "results" / "figures" / "bytes.png") as picture:
        assert min(picture.size) > 400
    assert "| NCL, cifar10 |" in (place / "results" / "bytes.md").read_text()


def test_the_bytes_figure_names_what_sixteen_bytes_give() -> None:
    axes = Figure().subplots()
    point = {"bytes": 16, "kept": 8}
    ncl = [{**point, "method": "activations, 8 bits", "precision": 0.797}, {**point, "method": "pca", "precision": 0.9}]
    ways = {"pca, 1 bit": 0.741, "features, 1 bit": 0.767}
    cl = [{**point, "method": way, "precision": precision} for way, precision in ways.items()]
    more = [{"bytes": 32, "kept": 16, "method": "activations, 8 bits", "precision": 0.99}]
    charts._name_the_best(axes, {"NCL": ncl + more, "CL": cl})
    assert [text.get_text() for text in axes.texts] == ["NCL in 16 bytes: 79.7", "the best of CL\nin 16 bytes: 76.7"]


def test_one_epoch_of_a_classifier_is_drawn_as_a_point(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "png_bytes", lambda figure: figure)
    curves = {"ce": [[(1, 0.2)], [(1, 0.4)]], "nce": [[(1, 0.1), (2, 0.5)]]}
    figure = cast(Figure, charts.learning({"digits": {"curves": curves, "search": {}}}))
    point, line = figure.axes[0].lines
    assert point.get_marker() == "o" and point.get_ydata() == pytest.approx([30])
    assert line.get_marker() == "None"


def test_every_way_that_the_bytes_figure_draws_was_measured(place: Path) -> None:
    ask(place, "bytes", only=("cifar10-cl-s0",))
    curve = lines(place, "bytes")["cifar10-cl-s0"]["measures"]["curve"]
    ways = {way for run, way, *_ in charts.RIVALS if run == "CL"}
    assert "features, 4 bits" in ways  # CL's strongest
    assert all(any(point["method"].startswith(way) for point in curve) for way in ways)


def test_selection_probes_what_was_kept_here_and_elsewhere(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("nonneg.analyses.selection"), "SHARES", (1 / 4, 1 / 4, 1 / 4, 1))
    ask(place, "selection", only=("cifar10-cl-s0",), results=tmp_path / "results")
    done = lines(tmp_path, "selection")
    assert done.keys() == {"cifar10-cl-s0"}
    rows = done["cifar10-cl-s0"]["measures"]["rows"]
    assert len({(r["by"], r["relu_in_ranking"], r["relu_in_features"]) for r in rows}) == 6
    asked = subject(place, "cl-s0")
    order = selection.rank(asked.features("train").z, relu=True)[:2]
    for data, key in ((None, "probe"), ("cifar100", "transfer")):
        seen = [asked.features(split, data) for split in ("train", "test")]
        kept = [np.maximum(f.z.toarray(), 0)[:, order] for f in seen]
        want = probes.linear_probe(kept[0], seen[0].labels, kept[1], seen[1].labels).accuracy  # type: ignore[arg-type]
        (row,) = [r for r in rows if (r["relu_in_ranking"], r["relu_in_features"], r["kept"]) == (True, True, 2)]
        assert row[key] == pytest.approx(want, abs=1e-6)


def test_selection_of_ncl_has_rows_without_relu(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("nonneg.analyses.selection"), "SHARES", (1 / 4, 1 / 4, 1 / 4, 1))
    ask(place, "selection", only=("cifar10-ncl-s0",))
    found = lines(place, "selection")["cifar10-ncl-s0"]["measures"]
    rows = {(r["relu_in_ranking"], r["relu_in_features"], r["kept"]): r for r in found["rows"] if r["by"] != "random"}
    asked = subject(place, "ncl-s0")
    plain, signed = ([asked.features(split, map=map) for split in ("train", "test")] for map in (None, maps.identity))
    assert (signed[1].z.data < 0).any() and not (plain[1].z.data < 0).any()
    np.testing.assert_array_equal(plain[1].z.toarray(), signed[1].z.maximum(0).toarray())
    for relu, seen in ((True, plain), (False, signed)):
        order = selection.rank(seen[0].z, relu=relu)
        kept = [selection.keep_features(f.z, order[:2]) for f in seen]
        want = probes.linear_probe(kept[0], seen[0].labels, kept[1], seen[1].labels).accuracy  # type: ignore[arg-type]
        assert rows[relu, relu, 2]["probe"] == pytest.approx(want, abs=1e-6)
        near = metrics.retrieval(kept[1], seen[1].labels)["precision"]
        assert rows[relu, relu, 2]["precision"] == pytest.approx(near, abs=1e-5)
    assert found["probe_quarter"] == rows[True, True, 2]["probe"]  # NCL as it is
    names = {path.name for path in (place / "runs" / "cifar10" / "ncl-s0" / "features").iterdir()}
    assert sum("-identity-" in name for name in names) == 4
    ask(place, "selection", only=("cifar10-cl-s0",))
    names = {path.name for path in (place / "runs" / "cifar10" / "cl-s0" / "features").iterdir()}
    assert not any("-identity-" in name for name in names)  # CL has no other


def test_digits_with_many_features_are_selected_and_transferred_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.import_module("nonneg.analyses.selection"), "SHARES", (1 / 4, 1 / 4, 1 / 4, 1))
    for name in ("digits-cl-s0", "digits-ncl-s0"):
        run = experiments.find("wide").runs[name]
        assert run.projector[-1] == 2048
        net = partial(backbones.small_net, width=4)
        train(replace(run, backbone=net, projector=(12, 8), epochs=1, device="cpu"), tmp_path / "runs" / "wide" / name)
    rows = ask(tmp_path, "selection", data_root=None)
    measured = lines(tmp_path, "selection")["wide-digits-ncl-s0"]["measures"]
    assert measured["transfer_all"] is None and 0 < measured["probe_quarter"] < 1
    (drawn,) = [r for r in measured["rows"] if (r["by"], r["relu_in_features"], r["kept"]) == ("random", True, 2)]
    assert measured["probe_random"] == pytest.approx(drawn["probe"], abs=1e-6)
    assert find(rows, "linear probe of z, a quarter kept at random", "NCL (relu), digits, wide").seeds == 1
    assert not [r for r in rows if r.measure.startswith("transfer")]
    assert analyses.find("selection").draw(lines(tmp_path, "selection")) is not None
    assert (
        analyses.find("selection").draw({"wide-digits-ncl-s0": lines(tmp_path, "selection")["wide-digits-ncl-s0"]})
        is None
    )


def test_identifiability_matches_the_seeds_of_a_method(place: Path) -> None:
    rows = ask(place, "identifiability")
    done = lines(place, "identifiability")
    assert {k: v["runs"] for k, v in done.items()} == {
        "cifar10-cl": ["cl-s0", "cl-s1"],
        "cifar10-ncl": ["ncl-s0", "ncl-s1"],
    }
    zs = [subject(place, name).features("test").z for name in ("ncl-s0", "ncl-s1")]
    want = metrics.match_features(*zs).mean
    assert find(rows, "mean |cosine| of matched features, x 100", "NCL, cifar10").ours == pytest.approx(
        100 * want, abs=1e-3
    )
    assert find(rows, "mean |cosine| of matched features, x 100", "NCL, cifar10").seeds == 2
    missing = {r.method for r in rows if r.measure == "all of these"}
    assert {"CL, cifar100", "NCL, cifar100"} <= missing and "NCL, cifar10" not in missing
    assert done["cifar10-cl"]["measures"]["signed"] and not done["cifar10-ncl"]["measures"]["signed"]


def test_disentanglement_is_sepin_of_two_views_of_the_test_images(place: Path) -> None:
    rows = ask(place, "disentanglement", only=("cifar10-ncl-s0",))
    asked = subject(place, "ncl-s0")
    run = asked.run
    views = on_images.two_views(asked.model, run.load("test"), run.augment, seed=0, device="cpu")
    want = metrics.sepin(*(v.z for v in views), temperature=1.0)
    assert find(rows, "SEPIN@all, x 1,000", "NCL, cifar10").ours == pytest.approx(1000 * want.mean(), abs=1e-3)
    assert find(rows, "SEPIN@1, x 1,000", "NCL, cifar10").ours == pytest.approx(1000 * want.max(), abs=1e-3)
    claimed = find(rows, "MIG, x 100", "NCL, sprites")
    assert claimed.paper == 6.5 and claimed.ours is None


def test_robustness_is_the_clean_probe_on_damaged_images(place: Path) -> None:
    rows = ask(place, "robustness", only=("cifar10-ncl-s0",))
    assert find(rows, "test images", "NCL, cifar10").cells()[3] == "30"  # not 30.0
    found = lines(place, "robustness")["cifar10-ncl-s0"]["measures"]
    asked = subject(place, "ncl-s0")
    train_f, test_f = asked.features("train"), asked.features("test")
    want = probes.linear_probe(train_f.h, train_f.labels, test_f.h, test_f.labels).accuracy  # type: ignore[arg-type]
    assert found["clean"] == pytest.approx(want, abs=0.04) and found["images"] == 30
    assert list(found["each"]) == list(corruptions.NAMES) and all(len(v) == 5 for v in found["each"].values())
    assert found["corruption_accuracy"] == pytest.approx(np.mean(list(found["each"].values())), abs=1e-5)
    assert found["lost"] == pytest.approx(found["clean"] - found["corruption_accuracy"], abs=2e-6)


def test_protocol_is_the_same_encoder_fed_and_read_as_the_authors_do(place: Path, tmp_path: Path) -> None:
    run = experiments.find("cifar100").runs["cl-s1"]
    net = partial(backbones.small_net, width=4)
    small = replace(run, backbone=net, projector=(12, 8), batch_size=16, epochs=2, data_root=place / "data")
    train(replace(small, device="cpu"), tmp_path / "runs" / "cifar100" / "cl-s1")
    ask(tmp_path, "protocol", data_root=place / "data")
    found = lines(tmp_path, "protocol")["cifar100-cl-s1"]["measures"]

    model = encoder.load(tmp_path / "runs" / "cifar100" / "cl-s1")
    data = [small.load(split) for split in ("train", "test")]
    mean, deviation = (torch.tensor(v).view(1, 3, 1, 1) for v in ((0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)))

    def accuracy(images_to_h: Callable[[Tensor], Tensor]) -> float:
        with torch.no_grad():
            h = [images_to_h(d.images[torch.arange(len(d))].float() / 255).numpy() for d in data]
        y = [d.labels.numpy() for d in data]
        return probes.linear_probe(h[0], y[0], h[1], y[1]).accuracy

    assert found["ours"] == pytest.approx(accuracy(model.eval().features), abs=1e-6)
    other = accuracy(lambda x: model.backbone((x - mean) / deviation))
    assert found["cifar10"] == pytest.approx(other, abs=1e-6)
    assert found["cifar10_lost"] == pytest.approx(found["ours"] - other, abs=2e-6)
    alone = accuracy(lambda x: model.train().features(x))  # 40 and 30 images: a batch each
    assert found["batch"] == pytest.approx(alone, abs=1e-6)

    def head(**how: object) -> float:
        return finetune.probe(model.eval(), *data, epochs=2, seed=1, **how)["h"].accuracy  # type: ignore[arg-type]

    assert found["crops"] == pytest.approx(head(), abs=1e-6)  # two epochs, like its encoder
    alone = head(augmentation=augment.simclr)
    assert found["views_alone"] == pytest.approx(alone, abs=1e-6)
    assert found["views_alone_lost"] == pytest.approx(found["crops"] - alone, abs=2e-6)
    hard = head(augmentation=augment.simclr, lr=0.1, weight_decay=0.0)
    assert found["views"] == pytest.approx(hard, abs=1e-6)
    assert found["views_lost"] == pytest.approx(found["crops"] - hard, abs=2e-6)


def test_protocol_trains_its_heads_as_its_rows_say(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def probe(*_: object, **how: Any) -> dict[str, Any]:
        asked.append({k: v for k, v in how.items() if k in ("epochs", "lr", "weight_decay", "augmentation")})
        return {"h": SimpleNamespace(accuracy=len(asked) / 10)}

    monkeypatch.setattr(protocol.finetune, "probe", probe)
    run, nothing = experiments.find("cifar100").runs["cl-s1"], cast(Any, None)
    found = protocol.heads(nothing, run, nothing, nothing, device=torch.device("cpu"))
    assert found == {"crops": 0.1, "views_alone": 0.2, "views": 0.3}
    views = {"epochs": 50, "augmentation": run.augment}
    assert asked == [{"epochs": 50}, views, {**views, "lr": 0.1, "weight_decay": 0.0}]


def test_an_analysis_of_seeds_of_which_one_has_no_value_has_none() -> None:
    one = analyses.find("robustness")
    key = next(iter(one.table))
    lines = {
        f"cifar10-cl-s{i}": {"measures": {key: value}, "runs": [f"cl-s{i}"]} for i, value in enumerate((0.5, None, 0.7))
    }
    row = find(asking._analysis_table(one, lines, {}), one.table[key][0], "CL, cifar10")
    assert (row.ours, row.std, row.seeds) == (None, None, 3)
    lines["cifar10-cl-s1"]["measures"] = {key: 0.6}
    row = find(asking._analysis_table(one, lines, {}), one.table[key][0], "CL, cifar10")
    assert row.ours == pytest.approx(one.table[key][1] * 0.6) and row.seeds == 3


def test_practice_is_what_an_evaluation_says_of_each_run(place: Path) -> None:
    rows = ask(place, "practice", only=("cifar10-cl-s0", "cifar10-ncl-s0"))
    done = {name: line["measures"] for name, line in lines(place, "practice").items()}
    assert done.keys() == {"cifar10-cl-s0", "cifar10-ncl-s0"}
    train_f, test_f = (subject(place, "ncl-s0").features(split) for split in ("train", "test"))
    assert train_f.labels is not None and test_f.labels is not None
    likely = measures.probabilities(train_f, test_f, scaled=False)
    found = done["cifar10-ncl-s0"]
    for key in ("latent_row_sum", "latent_classes", "latent_calibration_error"):
        assert found[key] == pytest.approx(likely[key]["value"], abs=1e-5)
    head = metrics.counted_head(train_f.z, train_f.labels, 10)
    assert found["counted"] == pytest.approx(((test_f.z @ head).argmax(1) == test_f.labels).mean(), abs=1e-5)
    agrees = metrics.agreement(metrics.by_largest(test_f.z), test_f.labels)
    assert (found["argmax_purity"], found["many"]) == (pytest.approx(agrees.purity, abs=1e-5), agrees.clusters)
    assert "latent_row_sum" not in done["cifar10-cl-s0"]  # of both signs
    assert find(rows, "largest feature as cluster, NMI", "CL, cifar10").ours is not None
    assert not [r for r in rows if r.measure.startswith("sum of P") and r.method.startswith("CL")]


def test_what_was_answered_is_not_asked_again_until_there_are_more_seeds(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, asked = analyses.find("identifiability"), []

    def ask_and_tell(subjects):  # type: ignore[no-untyped-def]
        asked.append([s.name for s in subjects])
        return real.ask(subjects)

    monkeypatch.setattr(analyses, "find", lambda _: replace(real, ask=ask_and_tell))
    for name in ("cl-s0", "cl-s1"):
        (tmp_path / "runs" / "cifar10").mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / "cifar10" / name).symlink_to(place / "runs" / "cifar10" / name)
    go = partial(ask, tmp_path, "identifiability", data_root=place / "data")
    first = go()
    assert go() == first and asked == [["cl-s0", "cl-s1"]]
    (tmp_path / "runs" / "cifar10" / "cl-s2").symlink_to(place / "runs" / "cifar10" / "ncl-s0")
    go()
    assert asked[1:] == [["cl-s0", "cl-s1", "cl-s2"]]
    assert go(report_only=True) == go()
    (tmp_path / "runs" / "cifar10" / "cl-s0").unlink()
    assert find(go(), "features matched above 0.5", "CL, cifar10").seeds == 3  # an answer of more seeds stays
    assert len(asked) == 2


def test_where_test_features_are_enough_those_that_were_kept_will_do(place: Path, tmp_path: Path) -> None:
    zs = []
    for name in ("ncl-s0", "ncl-s1"):
        made = subject(place, name).features("test")
        assert kept_features.keep(kept_features.path_of("cifar10", name, tmp_path / "results"), made, seed=0)
        zs.append(kept_features.load(kept_features.path_of("cifar10", name, tmp_path / "results")).z)
    rows = ask(tmp_path, "identifiability", data_root=None)
    want = 100 * metrics.match_features(*zs).mean
    row = find(rows, "mean |cosine| of matched features, x 100", "NCL, cifar10")
    assert row.ours == pytest.approx(want, abs=1e-3) and row.seeds == 2
    assert lines(tmp_path, "identifiability")["cifar10-ncl"]["from_kept_features"] == ["ncl-s0", "ncl-s1"]
    (tmp_path / "runs" / "cifar10").mkdir(parents=True)
    (tmp_path / "runs" / "cifar10" / "ncl-s1").symlink_to(place / "runs" / "cifar10" / "ncl-s1")
    (tmp_path / "results" / "identifiability.jsonl").unlink()
    ask(tmp_path, "identifiability", data_root=place / "data")
    line = lines(tmp_path, "identifiability")["cifar10-ncl"]
    assert line["from_kept_features"] == ["ncl-s0"] and line["runs"] == ["ncl-s0", "ncl-s1"]  # a model is better
    with pytest.raises(BadInput, match="looks at trained runs"):
        ask(tmp_path, "bytes", only=("cifar10-ncl-s0",))  # needs training features too


def test_bad_input_is_refused_in_one_sentence(place: Path, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="looks at trained runs, and there are too few"):
        ask(tmp_path, "bytes")
    with pytest.raises(BadInput, match="bytes trains nothing"):
        ask(place, "bytes", epochs=3)
    with pytest.raises(BadInput, match="did you mean 'bytes'"):
        ask(place, "byte")
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"--results .*file is no folder to write to"):  # before a question is asked
        ask(place, "bytes", results=tmp_path / "file")
    none = ask(tmp_path, "bytes", report_only=True)
    assert {(r.measure, r.method, r.cells()[3]) for r in none} == {
        ("all of these", f"{method}, {of}", "not run") for method in ("CL", "NCL") for of in ("cifar10", "cifar100")
    }
    assert [r.method for r in ask(tmp_path, "bytes", report_only=True, only=("cifar100-ncl",))] == ["NCL, cifar100"]


@pytest.mark.parametrize("name", analyses.names())
def test_figures_are_drawn_from_the_lines_that_are_committed(name: str) -> None:
    picture = analyses.find(name).draw(ledger.read(COMMITTED / f"{name}.jsonl"))
    assert picture is not None
    with Image.open(io.BytesIO(picture)) as opened:
        assert np.asarray(opened.convert("L")).std() > 5  # not a blank page


def test_every_seed_has_its_bars_in_the_figure_of_the_protocol(monkeypatch: pytest.MonkeyPatch) -> None:
    room = importlib.import_module("nonneg.analyses.protocol")
    monkeypatch.setattr(room.charts, "ways", lambda shown, ways: (shown, list(ways)))
    measured = {f"cifar100-cl-s{seed}": {"measures": {"ours": seed}} for seed in range(2)}
    shown, ways = room.draw(measured)
    assert shown == {"CL, cifar100, seed 0": {"ours": 0}, "CL, cifar100, seed 1": {"ours": 1}}
    assert ways == ["ours"]  # what no line holds is not in the legend


def test_a_way_that_was_not_asked_of_a_run_has_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(charts, "png_bytes", lambda figure: figure)
    figure = charts.ways({"first": {"a": 0.5, "b": 0.25}, "second": {"a": 0.75}}, {"a": "one way", "b": "another"})
    one, another = cast(Figure, figure).axes[0].containers[::1]
    assert [bar.get_width() for bar in one] == [50, 75] and [bar.get_width() for bar in another] == [25]  # type: ignore[attr-defined]


def test_practice_names_panels_by_data_loss_and_net(monkeypatch: pytest.MonkeyPatch) -> None:
    room = importlib.import_module("nonneg.analyses.practice")
    monkeypatch.setattr(room.charts, "practice", lambda panels: panels)
    measured = {name: {"measures": name} for name in (
        "cifar100-ncl-s0", "cifar10-cl-s0", "cifar10-ncl-s0", "maps-digits-identity-s0", "maps-digits-rep_relu-s0",
        "spectral-cl-s0", "spectral-ncl-s0", "spectral-small-ncl-s0", "spectral-digits-cl-s1", "spectral-digits-ncl-s0",
    )}  # fmt: skip
    panels = room.draw(measured)
    assert panels == {
        "digits, spectral": {"NCL": "spectral-digits-ncl-s0", "CL": "spectral-digits-cl-s1"},
        "digits": {"CL": "maps-digits-identity-s0", "NCL": "maps-digits-rep_relu-s0"},
        "CIFAR-10, spectral": {"CL": "spectral-cl-s0", "NCL": "spectral-ncl-s0"},
        "CIFAR-10, spectral, small net": {"NCL": "spectral-small-ncl-s0"},
        "CIFAR-10": {"CL": "cifar10-cl-s0", "NCL": "cifar10-ncl-s0"},
        "CIFAR-100": {"NCL": "cifar100-ncl-s0"},
    }
    assert list(panels)[:2] == ["digits, spectral", "digits"] and list(panels)[-1] == "CIFAR-100"
    assert room.draw({}) is None
