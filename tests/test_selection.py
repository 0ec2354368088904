"""Selection against loops, codes against their own files, `nonneg select` as it is typed. N images, D features."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.decomposition import TruncatedSVD
from sklearn.preprocessing import normalize

from nonneg import metrics, selection
from nonneg.errors import BadInput


def example(*, n: int = 60, d: int = 12, seed: int = 0, signed: bool = False) -> np.ndarray:
    """Tied values, a dead feature, a row of zeros and one with a single activation."""
    rng = np.random.default_rng(seed)
    z = np.round(rng.normal(size=(n, d)), 1) * (rng.random((n, d)) < 0.5)
    z[:, 4], z[7], z[8] = 0, 0, 0
    z[8, 2] = 1.5
    return (z if signed else np.abs(z)).astype(np.float32)


# What to keep


def test_rank_is_by_expected_activation_with_and_without_relu() -> None:
    z = np.array([[3.0, -4, 0], [3, -4, 0], [0, -1, 1]])
    assert selection.rank(z, relu=True).tolist() == [0, 2, 1]  # max(z, 0): 2/3, 0, 1/3
    assert selection.rank(z, relu=False).tolist() == [1, 0, 2]  # |z| / |z_n|: .4, .77, .24
    x = example()
    assert (selection.rank(x, relu=True) == selection.rank(x, relu=False)).all()
    assert selection.rank(x)[-1] == 4 and selection.rank(np.ones((3, 5))).tolist() == [0, 1, 2, 3, 4]


def test_a_random_order_is_the_generators() -> None:
    orders = [selection.rank(example(), by="random", rng=np.random.default_rng(s)).tolist() for s in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2] and sorted(orders[0]) == list(range(12))


def test_keep_features_takes_columns_in_that_order() -> None:
    z = example()
    assert (selection.keep_features(sparse.csr_array(z), [5, 0, 2]).toarray() == z[:, [5, 0, 2]]).all()


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 10**6), k=st.integers(1, 12), signed=st.booleans())
def test_keep_top_matches_a_sort_of_each_sample(seed: int, k: int, signed: bool) -> None:
    z = example(seed=seed, signed=signed)
    slow = np.zeros_like(z)
    for row, out in zip(z, slow, strict=True):
        best = sorted(range(12), key=lambda d: (-abs(row[d]), d))[:k]
        out[best] = row[best]
    kept = selection.keep_top(z, k)
    assert (kept.toarray() == slow).all() and (kept.data != 0).all()


def test_keep_top_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    z = example()
    whole = selection.keep_top(z, 3).toarray()
    monkeypatch.setattr(selection, "ROWS", 7)
    assert (selection.keep_top(z, 3).toarray() == whole).all()


# Bytes


def test_bytes_per_vector() -> None:
    assert selection.bytes_per_vector(256, bits=32) == 1024
    assert selection.bytes_per_vector(256) == 256 and selection.bytes_per_vector(3, bits=4) == 2
    assert selection.bytes_per_vector(256, bits=1) == 32 and selection.bytes_per_vector(9, bits=1) == 2
    assert selection.bytes_per_vector(8, index_of=256) == 16 and selection.bytes_per_vector(8, index_of=257) == 24
    assert selection.bytes_per_vector(2, index_of=70_000) == 10


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("signed", [False, True])
def test_quantised_values_are_half_a_step_off_at_most(bits: int, signed: bool) -> None:
    z = example(signed=signed)
    back = selection.quantised(z, z, bits=bits).toarray()
    step = np.abs(z).max(0) / (2 ** (bits - signed) - 1)
    assert (np.abs(back - z) <= step / 2 + 1e-6).all()
    assert len(np.unique(back[:, 2])) <= 2**bits
    assert (back[z == 0] == 0).all() and (signed or (back[z > 0] > 0).all())


def test_one_bit_is_the_sign() -> None:
    z = example(signed=True)
    assert (selection.quantised(z, z, bits=1).toarray() == np.where(z > 0, 1, -1)).all()
    assert (selection.quantised(abs(z), abs(z), bits=1).toarray() == (z != 0)).all()


def test_values_beyond_the_training_data_are_clipped_and_dead_features_have_a_step() -> None:
    train = np.array([[1.0, 0], [2, 0]])
    quantum = selection.quanta(train)
    assert (selection.quanta(sparse.csr_array([[1e-50, 2.0], [0, 1]])) > 0).all()  # float32 has no 1e-52
    assert quantum == pytest.approx([2 / 255, 2 / 255])
    cells = selection.to_cells(np.array([[99.0, 1], [2, 0]]), quantum, signed=False)
    assert cells.toarray().tolist() == [[255, 128], [255, 0]]


# Codes


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize(("features", "top"), [(5, None), (None, 3), (None, 12)])
def test_codes_round_trip_through_a_file(tmp_path: Path, signed: bool, features: int | None, top: int | None) -> None:
    z, labels, ids = example(signed=signed), np.arange(60) % 3, [f"é{i}.png" for i in range(60)]
    plan = selection.plan(z, features=features, top=top)
    codes = plan.codes(z, labels=labels, ids=ids)
    codes.save(tmp_path / "c.npz")
    read = selection.load_codes(tmp_path / "c.npz")
    for name in ("cells", "indices", "quantum", "labels"):
        before, after = getattr(codes, name), getattr(read, name)
        assert (before == after).all() and before.dtype == after.dtype
    assert read.ids == ids and read.bytes_per_vector == codes.bytes_per_vector
    record = read.cells[0].nbytes + (read.indices[0].nbytes if top else 0)
    assert read.bytes_per_vector == record  # what is said is what is stored
    if features:
        wanted = np.zeros_like(z)
        wanted[:, selection.rank(z, relu=not signed)[:features]] = z[:, selection.rank(z, relu=not signed)[:features]]
    else:
        assert top is not None
        wanted = selection.keep_top(z, top).toarray()
    back = read.decode().toarray()
    assert (np.abs(back - wanted) <= plan.quantum / 2 + 1e-6).all() and (back[wanted == 0] == 0).all()


def test_indices_of_many_features_are_wider() -> None:
    z = np.eye(300, dtype=np.float32)
    codes = selection.plan(z, top=2).codes(z)
    assert codes.indices.dtype == np.uint16 and codes.bytes_per_vector == 6
    assert (codes.decode().toarray().argmax(1) == np.arange(300)).all()


def test_codes_without_labels(tmp_path: Path) -> None:
    selection.plan(example(), top=2).codes(example()).save(tmp_path / "c.npz")
    read = selection.load_codes(tmp_path / "c.npz")
    assert read.labels is None and read.ids[:2] == ["0", "1"]


def test_damaged_codes_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    with pytest.raises(BadInput, match="does not exist"):
        selection.load_codes(path)
    selection.plan(example(), top=2).codes(example()).save(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(BadInput, match="damaged"):
        selection.load_codes(path)
    with path.open("wb") as f:
        np.savez(f, cells=np.ones((2, 1), np.uint8), indices=np.array([[9], [9]]), quantum=np.ones(3), ids=["a", "b"])
    with pytest.raises(BadInput, match="do not fit"):
        selection.load_codes(path)


def test_a_budget_takes_what_keeps_more_of_the_vector() -> None:
    rng = np.random.default_rng(0)
    scattered = np.eye(32, dtype=np.float32)[rng.integers(0, 32, 200)]  # one activation each, anywhere
    shared = np.zeros((200, 32), dtype=np.float32)
    shared[:, :4] = rng.random((200, 4)) + 0.5  # the same four features always
    assert selection.plan(scattered, budget=4).top == 2
    chosen = selection.plan(shared, budget=4).chosen
    assert chosen is not None and sorted(chosen) == [0, 1, 2, 3]
    assert selection.plan(scattered, budget=1).chosen is not None  # an index and a value need two bytes
    for z, b in ((scattered, 4), (shared, 4), (shared, 1000)):
        assert selection.plan(z, budget=b).codes(z).bytes_per_vector <= b


def test_reconstruction_is_the_mean_cosine() -> None:
    a = np.array([[1.0, 0], [1, 1], [0, 0], [1, 0]])
    b = np.array([[2.0, 0], [1, 0], [0, 0], [0, 0]])
    assert selection.reconstruction(a, b) == pytest.approx((1 + np.sqrt(0.5) + 1 + 0) / 4)


# The curve


def test_each_point_of_the_curve_is_retrieval_of_what_it_says() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(120) % 4
    z = rng.normal(size=(120, 16)) + np.eye(16)[y] * 2
    train, test, labels = z[:60], z[60:], y[60:]
    rows = selection.curve(train, test, labels, budgets=(2, 8, 16), k=5, rng=np.random.default_rng(5))
    found = {(r.method, r.bytes): r for r in rows}
    assert len(found) == len(rows)

    def check(method: str, size: int, kept: int, shortened: np.ndarray) -> None:
        row, wanted = found[method, size], metrics.retrieval(shortened, labels, k=5)
        assert (row.kept, row.precision, row.map) == (kept, wanted["precision"], wanted["map"])

    order = selection.rank(train, relu=False)
    check("features, float32", 64, 16, test)  # in full, though no budget says so
    check("features, float32", 8, 2, test[:, order[:2]])
    check("features, 8 bits", 8, 8, selection.quantised(train, test, bits=8).toarray()[:, order[:8]])
    check("features, 4 bits", 2, 4, selection.quantised(train, test, bits=4).toarray()[:, order[:4]])
    check("features, 1 bit", 2, 16, np.where(test > 0, 1, -1))
    check("pca, float32", 16, 4, test @ TruncatedSVD(4, random_state=0).fit(normalize(train)).components_.T)
    check("projection, float32", 8, 2, test @ np.random.default_rng(5).standard_normal((16, 16))[:, :2])
    method = "activations, 1-byte index and 8-bit values"
    check(method, 8, 4, selection.keep_top(selection.quantised(train, test, bits=8), 4).toarray())
    assert {r.bytes for r in rows if r.method == method} == {2, 8, 16}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda z: selection.keep_top(z, 13), "13 of 12 features cannot be kept"),
        (lambda z: selection.keep_top(z, 0), "0 of 12"),
        (lambda z: selection.keep_features(z, [12]), "from 0 to 11"),
        (lambda z: selection.rank(z, by="random"), "needs a random generator"),
        (lambda z: selection.rank(z, by="activations"), "did you mean 'activation'"),
        (lambda z: selection.rank(z[:0]), "no training samples"),
        (lambda z: selection.plan(z), "exactly one way"),
        (lambda z: selection.plan(z, top=1, features=1), "exactly one way"),
        (lambda z: selection.plan(z, features=13), "13 of 12 features"),
        (lambda z: selection.plan(z, budget=0), "0 bytes per vector"),
        (lambda z: selection.plan(0 * z, top=1), "nothing to keep"),
        (lambda z: selection.plan(z, top=1).codes(z[:, :3]), "have 3 features, those of training 12"),
        (lambda z: selection.plan(z, top=1).codes(-z), "negative values"),
        (lambda z: selection.plan(z + np.nan, top=1), "NaN"),
        (lambda z: selection.quanta(z, bits=9), "9 bits"),
        (lambda z: selection.reconstruction(z, z[:3]), "cannot be compared"),
        (lambda z: selection.curve(z, z, np.zeros(60, int), reductions=["projection"]), "needs a random generator"),
        (lambda z: selection.curve(z, z, np.zeros(60, int), reductions=["pcb"]), "did you mean 'pca'"),
    ],
)
def test_bad_input_is_one_sentence(call, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        call(example())


# nonneg select


SMALL = ["--backbone", "small_net:width=4", "--projector", "32", "16", "--epochs", "1", "--batch-size", "16"]


def test_select_writes_codes_and_says_what_was_lost(tmp_path: Path, tell: Callable) -> None:
    folder = tmp_path / "run"
    assert tell("train", "digits", "--map", "relu", "--out", folder, *SMALL)[0] == 0
    code, text, _ = tell("select", folder, "--top", 2, "--json")
    out = json.loads(text)
    assert code == 0 and out["bytes_per_vector"] == {"before": 64, "after": 4}
    codes = selection.load_codes(Path(out["files"]["test"]))
    assert codes.cells.shape == (450, 2) and codes.labels is not None and len(codes.ids) == 450
    found = metrics.retrieval(codes.decode(), codes.labels)
    assert out["precision@10"]["after"] == found["precision"] < out["precision@10"]["before"]
    assert 0 < out["knn_z"]["after"] <= 1 and 0 < out["neighbour_overlap@10"]["after"] < 1
    code, text, _ = tell("select", folder, "--bytes", 16)
    assert code == 0 and "precision@10" in text and "16 of 16 features" in " ".join(text.split())
    assert "min(k, R)" in text
    assert len(list((folder / "codes").iterdir())) == 4
    for flags in ([], ["--top", 2, "--bytes", 4]):
        code, text, err = tell("select", folder, *flags)
        assert code == 1 and "exactly one way" in err and text == ""
    code, _, err = tell("select", folder, "--features", 17)
    assert code == 1 and "17 of 16 features cannot be kept" in err
    code, _, err = tell("select", tmp_path / "nowhere", "--top", 1)
    assert code == 1 and "is not a run folder" in err
    code, text, _ = tell("select", "--help")
    assert code == 0 and "nonneg select" in text and "Examples" in text


def test_select_without_labels(tmp_path: Path, tell: Callable) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).integers(0, 255, (48, 16, 16, 3), dtype=np.uint8))
    folder = tmp_path / "run"
    assert tell("train", "arrays", "--data-root", tmp_path / "x.npy", "--out", folder, *SMALL)[0] == 0
    (tmp_path / "x.npy").rename(tmp_path / "moved.npy")
    assert tell("select", folder, "--features", 4, "--json")[0] == 1
    code, text, _ = tell("select", folder, "--features", 4, "--data-root", tmp_path / "moved.npy", "--json")
    out = json.loads(text)
    assert code == 0 and 0 < out["cosine"]["after"] <= 1
    assert any(k.startswith("neighbour_overlap@") for k in out)
    assert not any(k.startswith(("precision", "map", "knn")) for k in out)
    assert selection.load_codes(Path(out["files"]["train"])).labels is None


def test_select_of_a_single_test_image_has_no_neighbours(tmp_path: Path, tell: Callable) -> None:
    rng = np.random.default_rng(0)
    images = {f"{k}_images": rng.integers(0, 255, (n, 16, 16, 3), np.uint8) for k, n in (("train", 48), ("test", 1))}
    np.savez(tmp_path / "x.npz", **images)  # type: ignore[arg-type]
    folder = tmp_path / "run"
    assert tell("train", "arrays", "--data-root", tmp_path / "x.npz", "--out", folder, *SMALL)[0] == 0
    code, text, _ = tell("select", folder, "--top", 2, "--json")
    out = json.loads(text)
    assert code == 0 and out["cosine"]["after"] <= 1 and not [k for k in out if "@" in k]
