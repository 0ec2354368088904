"""Our measures beside brute force, one CPU core, same features, same run.

    python benchmarks/measures.py          # a table
    python benchmarks/measures.py --json   # the same as JSON

SEPIN's brute force keeps the inner products and, for each feature, takes its rank-one part off, then exponentials,
row sums and logarithms anew, all vectorised: N^2 a feature. Retrieval's ranks all cosines anew for each prefix, mutual
information is scikit-learn's pair by pair, monosemanticity's sums over all pairs of images. Each is timed on a few
features (or prefixes) and scaled to all; the table says how many, and how far apart the two answers are on them.
"""

import os

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from nonneg import metrics


def views(n: int, d: int, active: float) -> tuple[Any, Any]:
    """Two noisy views with unit rows and a share `active` of nonzeros, as CSR."""
    rng = np.random.default_rng(0)
    base = sparse.random_array((n, d), density=active / 0.8, format="csr", rng=rng)

    def view() -> Any:
        z = base.copy()
        z.data *= (1 + 0.3 * rng.random(z.nnz)) * (rng.random(z.nnz) < 0.8)
        z.eliminate_zeros()
        norm = np.sqrt(z.multiply(z).sum(axis=1))
        return sparse.csr_array(sparse.diags_array(1 / np.where(norm > 0, norm, 1)) @ z)

    return view(), view()


def timed(make: Callable[[], Any]) -> tuple[Any, float]:
    began = time.perf_counter()
    made = make()
    return made, time.perf_counter() - began


def sepin_by_brute_force(f: Any, g: Any, features: np.ndarray, temperature: float) -> tuple[np.ndarray, float, float]:
    """SEPIN of some features by recomputing the loss; also the seconds before the first and for each feature."""
    n = f.shape[0]
    work = np.empty((n, n))  # one buffer: allocating 200 MB for each feature would cost more than the arithmetic

    def loss(s: np.ndarray, x: np.ndarray, y: np.ndarray) -> float:
        np.subtract(s, np.multiply.outer(x / temperature, y, out=work), out=work)
        positive = work.diagonal().copy()
        np.exp(work, out=work)  # unit rows: nothing overflows, so no row maximum is needed
        e = work.diagonal()
        return float((np.log(e + (work.sum(axis=1) - e) / (n - 1)) - positive).mean())

    def prepare() -> tuple[np.ndarray, float]:
        s = (f @ g.T).toarray() / temperature
        return s, loss(s, np.zeros(n), np.zeros(n))

    (s, whole), before = timed(prepare)
    columns = [(f[:, [i]].toarray()[:, 0], g[:, [i]].toarray()[:, 0]) for i in features]
    found, seconds = timed(lambda: [loss(s, x, y) - whole for x, y in columns])
    return np.array(found), before, seconds / len(features)


def bench_sepin(*, n: int, d: int, active: float, sample: int, renormalise: bool) -> dict[str, Any]:
    f, g = views(n, d, active)
    ours, seconds = min((timed(lambda: metrics.sepin(f, g)) for _ in range(3)), key=lambda made: made[1])
    features = np.random.default_rng(1).choice(d, sample, replace=False)
    slow, before, each = sepin_by_brute_force(f, g, features, 1.0)
    row = {
        "measure": "sepin",
        "images": n,
        "features": d,
        "active": round(f.nnz / (n * d), 4),
        "ours_s": round(seconds, 3),
        "brute_force_s": round(before + each * d, 1),
        "brute_force_timed_on": sample,
        "ratio": round((before + each * d) / seconds, 1),
        "largest_difference": float(np.abs(ours[features] - slow).max()),
    }
    if renormalise:
        row["ours_renormalised_s"] = round(timed(lambda: metrics.sepin(f, g, renormalise=True))[1], 2)
    return row


def bench_retrieval(*, n: int, d: int, active: float, sample: int) -> dict[str, Any]:
    """Precision@10 of every power-of-two prefix in one sweep, beside cosines and sorting anew for each prefix."""
    z, _ = views(n, d, active)
    labels = np.random.default_rng(2).integers(0, 10, n)
    sizes = [2**i for i in range(2, d.bit_length()) if 2**i <= d]
    order = np.arange(d)
    ours, seconds = timed(lambda: metrics.retrieval_by_prefix(z, labels, order, sizes))

    def slowly(size: int) -> float:
        x = z[:, :size].toarray()
        norm = np.sqrt((x * x).sum(1, keepdims=True))
        x = x / np.where(norm > 0, norm, 1)
        cosine = (x @ x.T).astype(np.float32)
        np.fill_diagonal(cosine, -np.inf)
        tenth, same = -np.sort(-cosine, axis=1)[:, 9:10], labels == labels[:, None]
        above, level = cosine > tenth, cosine == tenth  # of equal cosines any are as near: their mean
        free = (10 - above.sum(1)) / level.sum(1)
        return float(((above & same).sum(1) + free * (level & same).sum(1)).mean() / 10)

    tried = sizes[-sample:]
    slow, each = timed(lambda: [slowly(size) for size in tried])
    found = [r["precision"] for r in ours[-sample:]]
    return _row("retrieval, all prefixes", z, seconds, each / len(tried) * len(sizes), len(tried), found, slow)


def bench_mig(*, n: int, d: int, active: float, sample: int) -> dict[str, Any]:
    """Mutual information of every code with five factors, beside scikit-learn's for one pair after the other."""
    from sklearn.metrics import mutual_info_score

    z, _ = views(n, d, active)
    factors = np.random.default_rng(3).integers(0, 8, (n, 5))
    ours, seconds = timed(lambda: metrics.mig(z, factors))
    dense = z[:, :sample].toarray()

    def slowly() -> list[float]:
        bins = [np.clip(((c - c.min()) / max(np.ptp(c), 1e-300) * 20).astype(int), 0, 19) for c in dense.T]
        return [mutual_info_score(f, b) for b in bins for f in factors.T]

    slow, each = timed(slowly)
    found = ours.information[:, :sample].T.ravel().tolist()
    return _row("mutual information (MIG)", z, seconds, each / sample * d, sample, found, slow)


def bench_monosemanticity(*, n: int, d: int, active: float, sample: int) -> dict[str, Any]:
    """Activation-weighted similarity of every feature's images, beside all pairs of images for each feature."""
    z, _ = views(n, d, active)
    e = np.random.default_rng(4).standard_normal((n, 128))
    ours, seconds = timed(lambda: metrics.monosemanticity(z, e))
    features = np.arange(sample)

    def slowly() -> list[float]:
        u = e / np.linalg.norm(e, axis=1, keepdims=True)
        cosine, out = u @ u.T, []
        for a in z[:, features].toarray().T:
            pairs = np.multiply.outer(a, a)
            np.fill_diagonal(pairs, 0)
            out.append(float((pairs * cosine).sum() / pairs.sum()))
        return out

    slow, each = timed(slowly)
    found = ours.per_feature[features].tolist()
    return _row("monosemanticity", z, seconds, each / sample * d, sample, found, slow)


def _row(
    name: str, z: Any, ours: float, brute: float, timed_on: int, found: list[float], slow: list[float]
) -> dict[str, Any]:
    return {
        "measure": name,
        "images": z.shape[0],
        "features": z.shape[1],
        "active": round(z.nnz / (z.shape[0] * z.shape[1]), 4),
        "ours_s": round(ours, 3),
        "brute_force_s": round(brute, 1),
        "brute_force_timed_on": timed_on,
        "ratio": round(brute / ours, 1),
        "largest_difference": float(np.abs(np.asarray(found) - np.asarray(slow)).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=5000)
    parser.add_argument("--features", type=int, default=2048)
    parser.add_argument("--active", type=float, default=0.01, help="share of features that fire on an image")
    parser.add_argument("--sample", type=int, default=8, help="features on which the brute force is timed")
    parser.add_argument("--renormalise", action="store_true", help="time SEPIN's re-normalised variant too")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    shape = {"n": args.images, "d": args.features, "active": args.active}
    rows = [
        bench_sepin(**shape, sample=args.sample, renormalise=args.renormalise),
        bench_retrieval(**shape, sample=min(2, args.sample)),
        bench_mig(**shape, sample=args.sample),
        bench_monosemanticity(**shape, sample=args.sample),
    ]
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{args.images} x {args.features}, {rows[0]['active']:.1%} active, one core; brute force scaled up")
    print(f"{'':26s}{'ours':>10s}{'brute force':>14s}{'ratio':>9s}   timed on   largest difference")
    for row in rows:
        print(
            f"{row['measure']:26s}{row['ours_s']:>8.2f} s{row['brute_force_s']:>12.1f} s{row['ratio']:>8.0f}x"
            f"{row['brute_force_timed_on']:>11d}   {row['largest_difference']:.1e}"
        )
        if "ours_renormalised_s" in row:
            print(f"  re-normalised {row['ours_renormalised_s']:>18.1f} s")


if __name__ == "__main__":
    main()
