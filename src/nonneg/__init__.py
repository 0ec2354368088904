"""nonneg: features you can read. The public surface, nothing else."""

import os

# Threads that wait by spinning take a busy machine's cores from each other: a step of the demo then took 240 ms instead
# of 40. Spinning for a moment before they sleep saves a fifth on an idle one (docs/decisions.md). Both are read by
# OpenMP when torch is first imported; a value that is set already stays.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "2000")

__version__ = "0.1.0"

from nonneg import augment, backbones, data, losses, maps, metrics, optim, probes
from nonneg.classifier import Classifier, NonNegativeClassifier
from nonneg.classifier import load as load_classifier
from nonneg.data import Dataset
from nonneg.encoder import Encoder, load, save
from nonneg.errors import BadInput
from nonneg.features import Features, extract
from nonneg.measures import measure
from nonneg.run import CIFAR, CLASSIFIERS, DIGITS, RECIPES, ClassifierRun, Run, recipe
from nonneg.supervised import train_classifier
from nonneg.train import train

__all__ = [
    "CIFAR",
    "CLASSIFIERS",
    "DIGITS",
    "RECIPES",
    "BadInput",
    "Classifier",
    "ClassifierRun",
    "Dataset",
    "Encoder",
    "Features",
    "NonNegativeClassifier",
    "Run",
    "augment",
    "backbones",
    "data",
    "extract",
    "load",
    "load_classifier",
    "losses",
    "maps",
    "measure",
    "metrics",
    "optim",
    "probes",
    "recipe",
    "save",
    "train",
    "train_classifier",
]
