"""Features as clusters: does the largest feature of an image name its class? N images, D features; z is N x D."""

import warnings
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from nonneg.errors import BadInput
from nonneg.metrics.sparsity import Matrix, as_csr, unit_rows

NEIGHBOURS = 10  # that a sample is tied to, for spectral clustering
STARTS = 3  # of k-means


@dataclass(frozen=True)
class Agreement:
    """How K clusters agree with labels.

    nmi: mutual information / mean of both entropies. accuracy: the share of samples right when clusters and classes are
    matched one to one (Hungarian), so that with K clusters at most K classes are ever right. purity: the same when
    every cluster takes its most frequent class; it rises with K, so compare it at one K.
    """

    clusters: int
    nmi: float
    accuracy: float
    purity: float


def agreement(found: np.ndarray, labels: np.ndarray) -> Agreement:
    """Clusters (N whole numbers, any) against labels (N whole numbers)."""
    from sklearn.metrics import normalized_mutual_info_score  # here and below, for it costs a second

    if len(found) != len(labels) or not len(labels):
        raise BadInput(
            f"there are {len(found)} samples in clusters and {len(labels)} labels: give one label per sample"
        )
    (kinds, cluster), (_, label) = (np.unique(v, return_inverse=True) for v in (found, labels))
    table = np.zeros((len(kinds), label.max() + 1))
    np.add.at(table, (cluster, label), 1)
    rows, columns = linear_sum_assignment(-table)
    nmi = float(normalized_mutual_info_score(label, cluster))
    right = float(table[rows, columns].sum() / len(labels))
    return Agreement(len(kinds), nmi, right, float(table.max(axis=1).sum() / len(labels)))


def by_largest(z: Matrix) -> np.ndarray:
    """The index of each sample's largest feature, of equals the first; -1 where all are zero."""
    z = as_csr(z)
    dense = z.toarray()
    return np.where((dense != 0).any(axis=1), dense.argmax(axis=1), -1)


def k_means(z: Matrix, clusters: int, *, seed: int = 0) -> np.ndarray:
    """Clusters by k-means of rows of unit length, the best of 3 starts."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    unit = _unit(z, clusters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer different rows than clusters: then fewer are found
        solver = KMeans(clusters, n_init=STARTS, random_state=seed)  # pyright: ignore[reportArgumentType]
        return solver.fit_predict(unit)


def spectral_clustering(z: Matrix, clusters: int, *, seed: int = 0) -> np.ndarray:
    """Clusters by k-means of the first eigenvectors of a graph that ties each sample to its 10 nearest by cosine.

    Samples are shuffled first: of equally near ones those that come first are taken, which must not tell the class.
    """
    from sklearn.cluster import SpectralClustering
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.neighbors import kneighbors_graph

    order = np.random.default_rng(seed).permutation(z.shape[0])
    unit = _unit(as_csr(z)[order], clusters)
    graph = kneighbors_graph(unit, min(NEIGHBOURS, len(unit) - 1))
    solver = SpectralClustering(clusters, affinity="precomputed", random_state=seed, n_init=STARTS)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Graph is not fully connected")  # the parts are clusters, then
        warnings.filterwarnings("ignore", "ARPACK has failed")  # where rows are all alike: another solver takes over
        warnings.simplefilter("ignore", ConvergenceWarning)
        found = solver.fit_predict((graph + graph.T) / 2)
    return found[np.argsort(order)]


def _unit(z: Matrix, clusters: int) -> np.ndarray:
    if not 1 <= clusters <= z.shape[0]:
        raise BadInput(f"{clusters} clusters of {z.shape[0]} samples: give a number from 1 to that")
    return unit_rows(z).toarray()
