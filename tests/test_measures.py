"""Groups of measures that need features alone: each entry against a reference. N images, D features, C classes."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.neighbors import NearestNeighbors

from nonneg import (
    measures,
    metrics,
    plots,
    probes,
    selection,
)
from nonneg.errors import BadInput
from nonneg.features import Features


def fake(n: int = 60, d: int = 12, *, classes: int = 3, seed: int = 0, labelled: bool = True) -> Features:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    z = np.maximum(rng.normal(size=(n, d)) + (np.arange(d) % classes == y[:, None]) - 0.7, 0).astype(np.float32)
    h = (rng.normal(size=(n, 8)) + 3 * np.eye(8)[y]).astype(np.float32)
    return Features(h, sparse.csr_array(z), y if labelled else None, [str(i) for i in range(n)])


def info_nce(f: np.ndarray, g: np.ndarray) -> float:
    n = len(f)
    total = 0.0
    for i in range(n):
        negatives = sum(math.exp(f[i] @ g[m]) for m in range(n) if m != i) / (n - 1)
        total -= math.log(math.exp(f[i] @ g[i]) / (math.exp(f[i] @ g[i]) + negatives))
    return total / n


def norm(x: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x, axis=1, keepdims=True).clip(1e-12)


def test_sepin_entries_match_dropping_one_feature_after_the_other() -> None:
    f, g = (fake(n=15, d=11, seed=s).z for s in (1, 2))
    a, b = (z.toarray().astype(np.float64) for z in (f, g))
    a, b = (x / np.linalg.norm(x, axis=1, keepdims=True).clip(1e-12) for x in (a, b))
    drop = [info_nce(np.delete(a, i, 1), np.delete(b, i, 1)) - info_nce(a, b) for i in range(11)]
    found = measures.sepin(f, g, views="gentle", seed=7)
    assert found["sepin@1"]["value"] == pytest.approx(max(drop), abs=1e-9)
    assert found["sepin@10"]["value"] == pytest.approx(np.mean(sorted(drop)[1:]), abs=1e-9)
    assert found["sepin@all"]["value"] == pytest.approx(np.mean(drop), abs=1e-9)
    np.testing.assert_allclose(found["sepin@all"]["each"], drop, rtol=1e-5, atol=1e-12)
    assert found["sepin@100"]["value"] is None and found["sepin@100"]["why"] == "there are 11 features"
    training = [e for name, e in found.items() if name.startswith("sepin_training@")]
    assert {(e["value"], e["why"]) for e in training} == {(None, "the loss of this run has no temperature")}
    whole = [info_nce(np.delete(a, i, 1) / norm(np.delete(a, i, 1)), np.delete(b, i, 1) / norm(np.delete(b, i, 1)))
             - info_nce(a, b) for i in range(11)]  # fmt: skip
    np.testing.assert_allclose(found["sepin_renormalised@all"]["each"], whole, rtol=1e-5, atol=1e-12)
    few = measures.sepin(f, g, views="gentle", seed=7, temperature=0.2, few=5)
    assert few["sepin_renormalised@1"]["images"] == 5 and few["sepin@1"] == found["sepin@1"]
    cold = metrics.sepin(f, g, temperature=0.2)
    assert few["sepin_training@1"]["value"] == cold.max() and few["sepin_training@1"]["temperature"] == 0.2
    assert found["sepin@1"] | {"images": 15, "views": "gentle", "seed": 7, "temperature": 1.0} == found["sepin@1"]
    for name, images, temperature, rows in (
        ("sepin@1", 15, 1, "not again"),
        ("sepin_training@1", 15, 0.2, "not again"),
        ("sepin_renormalised@1", 5, 1, "and again"),
    ):
        said = few[name]["definition"]
        assert f"two views of {images} test images" in said and f"at temperature {temperature};" in said
        assert f"unit length, {rows} after a feature is dropped" in said and "all other images of the second" in said


def test_retrieval_entries_match_scikit_learn_and_leave_out_a_class_of_one() -> None:
    train, test = fake(d=16, seed=1), fake(d=16, seed=2)
    test.labels[0] = 9  # the only one of its class
    found = measures.retrieval(train, test, k=5)
    z = test.z.toarray().astype(np.float64)
    assert z.any(axis=1).all()  # scikit-learn has no cosine of a row of zeros
    near = NearestNeighbors(n_neighbors=6, metric="cosine").fit(z).kneighbors(z, return_distance=False)
    right = [np.mean(test.labels[[m for m in near[i] if m != i][:5]] == test.labels[i]) for i in range(1, 60)]
    assert found["precision@5"]["value"] == pytest.approx(np.mean(right))
    assert found["precision@5"]["left_out"] == 1 and found["precision@5"]["queries"] == 59
    assert found["precision@5"]["each"]["features"] == [1, 2, 4, 8, 16]
    assert found["precision@5"]["each"]["precision"][-1] == pytest.approx(found["precision@5"]["value"], abs=1e-6)
    most = np.argsort(-metrics.expected_activation(train.z), kind="stable")
    for size, got in zip((1, 2, 4, 8, 16), found["precision@5"]["each"]["precision"], strict=True):
        part = metrics.retrieval(test.z[:, most[:size]], test.labels, k=5)["precision"]
        assert got == pytest.approx(part, abs=1e-6)
    pairs = [np.mean(np.delete(test.labels, i) == test.labels[i]) for i in range(1, 60)]
    assert found["precision_chance"]["value"] == pytest.approx(np.mean(pairs))
    whole = metrics.retrieval(test.z, test.labels, k=5)
    of = {"map@5": "map_min", "map@5_hits": "map_hits", "map@5_relevant": "map_relevant"}
    assert {name: found[name]["value"] for name in of} == {name: pytest.approx(whole[key]) for name, key in of.items()}
    assert len({round(whole[key], 3) for key in of.values()}) == 3


def test_retrieval_takes_no_more_neighbours_than_there_are() -> None:
    assert "precision@5" in measures.retrieval(fake(seed=1), fake(n=6, classes=2))


def test_expected_activation_is_of_the_training_samples() -> None:
    train, test = fake(d=40, seed=1), fake(d=40, seed=2)
    share = np.sort(metrics.expected_activation(train.z))[::-1]
    found = measures.measure(train, test)["expected_activation_top"]
    assert found["value"] == pytest.approx(share[:10].sum() / share.sum())
    used = measures.spectrum(train, test)["activations_90"]
    assert used["value"] == 1 + int((share.cumsum() / share.sum() < 0.9).sum())
    np.testing.assert_allclose(used["each"], share / share.sum(), rtol=1e-4)


def test_spectrum_entries_of_one_hot_features() -> None:
    y = np.repeat(np.arange(20), 5)
    z = sparse.csr_array(np.eye(20)[y])
    found = measures.spectrum(Features(z.toarray(), z, y, []), Features(z.toarray(), z, y, []))
    assert found["eigenvalues_top"]["value"] == pytest.approx(0.5)
    assert found["eigenvalues_90"]["value"] == found["activations_90"]["value"] == 18
    np.testing.assert_allclose(found["eigenvalues_top"]["each"], 0.05, rtol=1e-5)
    assert found["activation_fall"]["value"] is None
    assert found["activation_fall"]["why"] == "there are 20 features, and 2C is 40"
    coarse = measures.spectrum(Features(z.toarray(), z, y // 2, []), Features(z.toarray(), z, None, []))
    assert coarse["activation_fall"]["value"] == 0 and coarse["activation_fall"]["classes"] == 10
    none = measures.spectrum(*[Features(z.toarray(), z, None, [])] * 2)["activation_fall"]
    assert none["value"] is None and none["why"] == "the training data have no labels"
    assert none["definition"] == coarse["activation_fall"]["definition"]


def test_identifiability_of_a_permuted_copy_is_whole_and_its_nulls_are_not() -> None:
    z = fake(n=200, d=10).z.toarray()
    z[:, 3] = 0
    found = measures.identifiability([z, 5 * z[:, ::-1]], names=["b"])
    for similarity in ("cosine", "correlation"):
        key = f"identifiability_{similarity}"
        assert found[key]["value"] == pytest.approx(1) and found[f"{key}_share"]["value"] == 1
        assert found[f"{key}_shuffled"]["value"] < 0.9 and found[f"{key}_rotated"]["value"] < 0.9
        assert found[key]["each"][3] is None and found[key]["each"][:3] == [1, 1, 1]


def test_monosemanticity_entries_are_of_a_centred_judge() -> None:
    test = fake(d=8)
    judge = np.abs(test.h)  # in one corner, like the outputs of a ReLU
    found, want = measures.monosemanticity(test.z, judge, name="j"), metrics.monosemanticity
    centred, raw = (want(test.z, judge, centred=yes) for yes in (True, False))
    assert found["monosemanticity"]["value"] == centred.mean != pytest.approx(raw.mean, abs=0.1)
    assert found["monosemanticity_baseline"]["value"] == centred.baseline != pytest.approx(raw.baseline, abs=0.1)


def test_factor_entries_name_the_constant_factors() -> None:
    rng = np.random.default_rng(0)
    table = np.stack([rng.integers(0, 4, 300), np.full(300, 2), rng.integers(0, 3, 300)], axis=1)
    found = measures.factors(table[:, [0, 2]].astype(float), table, names=["shape", "scale", "x"])
    assert found["mig"]["value"] == pytest.approx(1, abs=0.05) and found["dci_informativeness"]["value"] == 1
    assert found["mig"]["left_out_as_constant"] == ["scale"] and set(found["mig"]["each"]) == {"shape", "x"}
    means = ("mig", "sap", "dci_completeness", "dci_informativeness")
    assert all("mean over factors but scale (constant)" in found[name]["definition"] for name in means)
    one = np.stack([table[:, 0], np.zeros(300)], axis=1)  # a code of shape alone
    gaps = measures.factors(one, table, names=["shape", "scale", "x"])["mig"]["each"]
    assert gaps["shape"] == pytest.approx(1, abs=0.05) and gaps["x"] < 0.1
    with pytest.raises(BadInput, match="none of the 1 factors takes two values"):
        measures.factors(table[:, :1].astype(float), table[:, 1:2], names=["scale"])


def test_dead_features_have_defined_entries() -> None:
    dead = Features(np.ones((6, 2), np.float32), sparse.csr_array((6, 3), dtype=np.float32), np.arange(6) % 2, [])
    assert {e["value"] for e in measures.sepin(dead.z, dead.z, views="none", seed=0).values()} == {0, None}
    assert {e["value"] for e in measures.spectrum(dead, dead).values()} == {None}
    assert measures.monosemanticity(dead.z, np.eye(6), name="j")["monosemanticity"]["value"] is None
    for group in (
        measures.measure(dead, dead, k=2),
        measures.sepin(dead.z, dead.z, views="none", seed=0),
        measures.retrieval(dead, dead, k=2),
        measures.spectrum(dead, dead),
        measures.probabilities(dead, dead, scaled=True),
        measures.clusters(dead),
        measures.monosemanticity(dead.z, np.eye(6), name="j"),
    ):
        assert all(("why" in e) == (e["value"] is None) for e in group.values())
    with pytest.raises(BadInput, match="every feature is zero on every test sample"):
        measures.selected(fake(n=6, d=3, classes=2), dead, k=2)
    found = measures.retrieval(dead, dead, k=2) | measures.clusters(dead)
    assert {e["value"] for name, e in found.items() if name != "precision_chance"} == {None}  # whatever the order
    assert found["kmeans_nmi"]["why"] == "every feature is zero on every test sample"


def test_selection_without_training_labels_says_why_there_is_no_probe() -> None:
    found = measures.selected(fake(d=8, seed=1, labelled=False), fake(d=8, seed=2), k=5)
    assert found["kept_probe"]["value"] is None and found["kept_probe"]["why"] == "the training data have no labels"
    assert found["kept_precision"]["value"] > 0


def test_selection_says_when_not_one_activation_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "index_bytes", lambda width: width // 2)  # as if there were more than 65,536
    found = measures.selected(fake(d=8, seed=1), fake(d=8, seed=2), k=5)
    assert found["precision_bytes_4"]["value"] is None
    assert found["precision_bytes_4"]["why"] == "one activation of 8 features takes more"
    assert found["precision_bytes_16"]["kept"] == 3  # five bytes each


@pytest.mark.parametrize("signed", [False, True])
def test_selection_entries_are_retrieval_and_probes_of_what_is_kept(signed: bool) -> None:
    train, test = fake(n=90, d=16, seed=1), fake(n=70, d=16, seed=2)
    if signed:
        train, test = (replace(f, z=sparse.csr_array(f.z.toarray() - 0.3)) for f in (train, test))
    found = measures.selected(train, test, queries=40, k=5)
    asked = np.sort(np.random.default_rng(0).permutation(70)[:40])
    whole = metrics.retrieval(test.z, test.labels, k=5, queries=asked)["precision"]
    assert found["precision_bytes_whole"]["value"] == whole and found["precision_bytes_whole"]["bytes"] == 64
    for size, top in ((4, 2), (16, 8), (64, 16)):
        codes = selection.plan(train.z, top=top).codes(test.z).decode()
        want = metrics.retrieval(codes, test.labels, k=5, queries=asked)["precision"]
        assert found[f"precision_bytes_{size}"]["value"] == want and found[f"precision_bytes_{size}"]["kept"] == top
    methods = {point["method"].partition(",")[0] for point in found["precision_bytes_whole"]["each"]}
    assert methods == {"features", "pca", "projection", "activations"}
    rows = found["kept_probe"]["each"]
    assert {(r["by"], r["relu_in_ranking"], r["relu_in_features"]) for r in rows} == (
        set(selection.WAYS) if signed else {("activation", True, True), ("random", False, True)}
    )
    chosen = selection.rank(train.z, relu=not signed)[:4]
    kept = [selection.keep_features(f.z, np.sort(chosen)) for f in (train, test)]
    want = probes.linear_probe(kept[0], train.labels, kept[1], test.labels).accuracy
    assert found["kept_probe"]["value"] == want and found["kept_probe"]["kept"] == 4
    near = metrics.retrieval(kept[1], test.labels, k=5, queries=asked)["precision"]
    assert found["kept_precision"]["value"] == pytest.approx(near, abs=1e-6)
    drawn = np.sort(selection.rank(train.z, by="random", relu=False, rng=np.random.default_rng(0))[:4])
    at_random = [selection.keep_features(f.z, drawn) for f in (train, test)]
    near = metrics.retrieval(at_random[1], test.labels, k=5, queries=asked)["precision"]
    assert found["kept_precision"]["random"] == pytest.approx(near, abs=1e-6)
    want = probes.linear_probe(at_random[0], train.labels, at_random[1], test.labels).accuracy
    assert found["kept_probe"]["random"] == want
    both = [(r, p["precision"]) for r, p in zip(rows, found["kept_precision"]["each"], strict=True)]
    for row, precision in ((r, p) for r, p in both if r["by"] == "activation"):
        order = selection.rank(train.z, relu=row["relu_in_ranking"])[: row["kept"]]
        of = [f.z.maximum(0).tocsr() if row["relu_in_features"] else f.z for f in (train, test)]
        of = [selection.keep_features(z, np.sort(order)) for z in of]
        near = metrics.retrieval(of[1], test.labels, k=5, queries=asked)["precision"]
        assert precision == pytest.approx(near, abs=1e-6)
        assert row["probe"] == probes.linear_probe(of[0], train.labels, of[1], test.labels).accuracy
    assert plots.PLOTS["bytes"](found, "#000000") is not None
