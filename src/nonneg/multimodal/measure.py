"""Features of images and of their texts, and all we measure of the two together, each number with its definition.

N images, T texts (captions that are read alike, whatever their case and spaces, are one text), D features.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from nonneg import features, files, metrics
from nonneg.errors import BadInput
from nonneg.features import Features
from nonneg.measures import Entry, entry
from nonneg.metrics import Words
from nonneg.metrics.sparsity import Matrix
from nonneg.multimodal import tokens
from nonneg.multimodal.encoder import PairEncoder
from nonneg.pairs import Pairs

KS = (1, 5, 10)
SHARED = (0.25, 0.75)  # a feature of this modality balance belongs to both kinds
LEAST = 3  # images whose texts a word must occur in to be scored
WAYS = {
    "image_to_text": "of the test images, the share with one of their texts among the {k} of largest cosine",
    "text_to_image": "of the distinct test texts, the share with one of their images among the {k} of largest cosine",
}


@dataclass(frozen=True)
class PairFeatures:
    """Of N images and T distinct texts, whose ids are the texts themselves; `pairs` is P x 2, (image, text)."""

    images: Features
    texts: Features
    pairs: np.ndarray
    cut: int  # texts longer than the encoder reads
    data: str = ""  # fingerprint of what they were made of

    def words(self, *, least: int = LEAST) -> Words:
        """Which words switch each feature on."""
        images = np.bincount(self.pairs[:, 1], minlength=len(self.texts.ids))
        words = [tokens.words(text) for text in self.texts.ids]
        return metrics.word_scores(self.texts.z, words, least=least, times=images)

    def save(self, folder: Path, name: str) -> list[Path]:
        """NAME-images.npz and NAME-texts.npz, each as `Features.save` writes, and NAME-pairs.npy."""
        paths = [folder / f"{name}-images.npz", folder / f"{name}-texts.npz", folder / f"{name}-pairs.npy"]
        self.images.save(paths[0])
        self.texts.save(paths[1])
        with files.atomic(paths[2]) as temporary, temporary.open("wb") as f:
            np.save(f, self.pairs, allow_pickle=False)
        return paths


@torch.inference_mode()
def extract(
    model: PairEncoder, data: Pairs, *, device: torch.device | str = "cpu", batch_size: int = 500
) -> PairFeatures:
    """h and z of every image and of every distinct text, unaugmented, in evaluation mode."""
    model = model.to(device).eval()
    made_of = data.fingerprint()
    images = features.extract(model.image, data.images, device=device, batch_size=batch_size)
    data = data.named(images.ids)  # images on disk that cannot be read any more have no features
    read = [tokens.normalise(text) for text in data.captions]
    spelt = dict(zip(reversed(read), reversed(data.captions), strict=True))  # the first spelling of each
    number = {text: i for i, text in enumerate(dict.fromkeys(read))}
    texts_read = [spelt[text] for text in number]
    pairs = np.unique(np.stack([data.owner.numpy(), np.array([number[text] for text in read])], axis=1), axis=0)
    rows, cut = model.text.read(texts_read)
    parts = [model.text.features(part.to(device)) for part in rows.split(batch_size)]
    h = torch.cat(parts)
    z = torch.cat([model.text.map(model.text.projector(part)) for part in parts])
    texts = Features(h.float().cpu().numpy(), sp.csr_array(z.float().cpu().numpy()), None, texts_read)
    features.check_finite(texts, f"the texts of {data.name}")
    return PairFeatures(images, texts, pairs, cut, made_of)


def measure(test: PairFeatures, *, eps: float = 1e-5) -> dict[str, Entry]:
    """Every measurement of test images and texts by name: its value, its definition and its parameters."""
    z: Matrix = test.images.z
    of_texts: Matrix = test.texts.z
    at: dict[str, Any] = {"threshold": eps}
    if z.shape[1] != of_texts.shape[1]:
        raise BadInput(f"images have {z.shape[1]} features and texts {of_texts.shape[1]}; they must share one space")
    found: dict[str, Entry] = {}
    asked = metrics.recall(z, of_texts, test.pairs, ks=KS)
    for way, definition in WAYS.items():
        how = {name: asked[way][name] for name in ("queries", "candidates")}
        for k in KS:
            said = definition.format(k=k)
            found[f"{way}@{k}"] = entry(asked[way]["recall"][k], said, chance=asked[way]["chance"][k], k=k, **how)
            found[f"{way}@{k}"]["data"] = test.data
        found[f"{way}_median_rank"] = entry(
            asked[way]["median_rank"], "rank of the best right answer by cosine, 1 the best, median over queries", **how
        )
    for kind, each in (("images", z), ("texts", of_texts)):
        found[f"sparsity_{kind}"] = entry(
            metrics.sparsity(each, eps=eps),
            f"share of features with |z| below the threshold, mean over test {kind}",
            **at,
        )
        active = metrics.active_per_sample(each, eps=eps)
        found[f"active_{kind}_median"] = entry(
            float(np.median(active)), f"features with |z| at or above the threshold, median over test {kind}", **at
        )
        found[f"live_{kind}"] = entry(
            int(metrics.live(each, eps=eps).sum()),
            f"features at or above the threshold on at least one of the {kind}",
            **at,
        )
    found["features"] = entry(z.shape[1], "number of features, the same for images and texts")
    found |= _balance(z, of_texts, eps)
    agreement, chance = (v[np.isfinite(v)] for v in metrics.pair_agreement(z, of_texts, test.pairs))
    found["pair_agreement"] = entry(
        float(agreement.mean()) if len(agreement) else float("nan"),
        "cosine over the test pairs between a feature on the image and on its text, rows at length 1, mean over the "
        "features that are not zero on either side",
        why="every feature is zero on all images or on all texts",
        chance=float(chance.mean()) if len(chance) else None,
        features=len(agreement),
    )
    if test.images.labels is not None:
        labels = test.images.labels
        found["class_consistency"] = entry(
            metrics.class_consistency(z, labels, eps=eps),
            "share of the most frequent class among the images a feature is active on, mean over live features",
            why="no feature is live on the test images",
            chance=metrics.chance(labels),
            **at,
        )
    found["texts_cut"] = entry(
        test.cut, "distinct test texts that are longer than the text encoder reads, and were cut"
    )
    return found


def _balance(z: Matrix, of_texts: Matrix, eps: float) -> dict[str, Entry]:
    balance = metrics.modality_balance(z, of_texts)
    live = metrics.live(z, eps=eps) | metrics.live(of_texts, eps=eps)
    mine = balance[live & np.isfinite(balance)]
    low, high = SHARED
    none = "no feature is live on the test images or texts"
    said = "modality balance, E z_image / (E z_image + E z_text) with rows at length 1 (|z| where features are signed)"
    return {
        "modality_balance": entry(
            float(np.median(mine)) if len(mine) else float("nan"), f"median over live features of: {said}", why=none
        )
        | {"each": [round(float(b), 4) if on else None for b, on in zip(balance, live, strict=True)]},
        "shared_features": entry(
            float(((mine >= low) & (mine <= high)).mean()) if len(mine) else float("nan"),
            f"share of live features from {low:g} to {high:g} in: {said}",
            why=none,
            low=low,
            high=high,
        ),
        "live_features": entry(int(live.sum()), "features that some test image or text switches on", threshold=eps),
    }
