"""Images and their texts in one space of non-negative features: from pairs to a report."""

from nonneg.multimodal import report
from nonneg.multimodal.encoder import PairEncoder, TextEncoder, load, save
from nonneg.multimodal.measure import PairFeatures, extract, measure
from nonneg.multimodal.run import EMOJI, PAIR_RECIPES, PairRun
from nonneg.multimodal.train import train_pairs, trained

__all__ = [
    "EMOJI",
    "PAIR_RECIPES",
    "PairEncoder",
    "PairFeatures",
    "PairRun",
    "TextEncoder",
    "extract",
    "load",
    "measure",
    "report",
    "save",
    "train_pairs",
    "trained",
]
