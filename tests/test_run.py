"""Run and names: a round trip through JSON, and nothing from outside the package."""

import math
import re
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from nonneg import augment, backbones, losses, maps, names, optim
from nonneg.errors import BadInput
from nonneg.multimodal import texts
from nonneg.multimodal.run import TEXTS, PairRun
from nonneg.run import RECIPES, ROLES, ClassifierRun, Run, anywhere, from_json, recipe

WHERE = Path("run.json")


@pytest.mark.parametrize(
    "run",
    [
        *RECIPES.values(),
        Run(data_root=Path("a b"), projector=(3,), loss=partial(losses.info_nce, temperature=0.05)),
        Run(loss=partial(losses.spectral, mu=math.inf)),
    ],
)
def test_a_run_survives_json(run: Run) -> None:
    back = from_json(run.to_json(), WHERE)
    assert back.to_json() == run.to_json()
    for f in fields(Run):
        if f.name not in ROLES:
            assert getattr(back, f.name) == getattr(run, f.name)
    z1, z2 = torch.randn(4, 3), torch.randn(4, 3)
    assert torch.equal(back.loss(z1, z2), run.loss(z1, z2))


def test_knobs_are_bound_by_name_and_the_first_one_by_place() -> None:
    f = names.find("info_nce:temperature=0.05", ROLES["loss"])
    assert isinstance(f, partial) and f.func is losses.info_nce and f.keywords == {"temperature": 0.05}
    assert names.find("info_nce:0.05", ROLES["loss"]).keywords == {"temperature": 0.05}  # pyright: ignore
    assert names.find("timm:resnet50", ROLES["backbone"]).keywords == {"name": "resnet50"}  # pyright: ignore
    assert names.find("resnet18:stem=imagenet", ROLES["backbone"]).keywords == {"stem": "imagenet"}  # pyright: ignore
    assert names.find("resnet18", ROLES["backbone"]) is backbones.resnet18
    for text, value in (("true", True), ("False", False), ("TRUE", True)):
        assert names.find(f"spectral:normalise={text}", ROLES["loss"]).keywords == {"normalise": value}  # pyright: ignore
    for text, whole in (("vectors", "path=...,of=..."), ("vectors:path=e.npy", "path=e.npy,of=...")):
        with pytest.raises(BadInput, match=f"write vectors:{re.escape(whole)}$"):
            names.find(text, TEXTS)


@pytest.mark.parametrize(
    ("text", "role", "message"),
    [
        ("rep_rel", "map", r"unknown map 'rep_rel': did you mean 'rep_relu'\?"),
        ("cifar", "data", r"did you mean 'cifar1"),
        ("info_nce:temp=1", "loss", r"unknown knob .*did you mean 'temperature'"),
        ("info_nce:temperature=warm", "loss", r"temperature=warm should be a number"),
        ("resnet18:pad=1.5", "backbone", r"pad=1.5 should be a whole number"),
        ("resnet18:stem=big", "backbone", r"unknown stem"),
        ("timm", "backbone", r"needs name"),
        ("simclr:size=abc", "augment", r"size=abc should be a whole number"),
        ("simclr:size=2.5", "augment", r"size=2.5 should be a whole number"),
        ("spectral:normalise=maybe", "loss", r"normalise=maybe should be true or false"),
        ("spectral:normalise=1", "loss", r"normalise=1 should be true or false"),
        ("spectral:l1=true", "loss", r"l1=true should be a number"),
        ("relu:1", "map", r"it has none"),
        ("hue", "augment", r"unknown augmentation 'hue'"),
        ("LARS", "optimizer", r"unknown optimizer 'LARS'"),
        ("torch.nn.Linear", "backbone", r"unknown backbone"),
        ("__import__", "map", r"unknown map"),
    ],
)
def test_a_wrong_name_gets_one_clear_sentence(text: str, role: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        names.find(text, ROLES[role])


def test_a_text_stays_text_and_a_number_may_be_infinite() -> None:
    for text in ("2024", "true", "None", "inf"):
        assert names.find(f"timm:{text}", ROLES["backbone"]).keywords == {"name": text}  # pyright: ignore
    assert names.find("spectral:mu=inf", ROLES["loss"]).keywords == {"mu": math.inf}  # pyright: ignore
    with pytest.raises(BadInput, match="pad=inf should be a whole number"):
        names.find("resnet18:pad=inf", ROLES["backbone"])


def test_a_text_may_hold_commas() -> None:
    f = partial(texts.vectors, path="red, blue/e.npy", of="red, blue/c.csv")
    assert names.find(names.spell(f, TEXTS), TEXTS).keywords == f.keywords  # pyright: ignore


def test_a_run_means_the_same_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    run = anywhere(ClassifierRun(data_root=Path("~/photos"), pretrained=Path("runs/cl")))
    assert (run.data_root, run.pretrained) == (tmp_path / "home" / "photos", tmp_path / "runs" / "cl")
    run = anywhere(PairRun(captions=Path("~/c.csv")))
    assert (run.data_root, run.captions) == (None, tmp_path / "home" / "c.csv")


def test_a_knob_that_may_be_left_open_takes_none_or_a_number() -> None:
    assert names.find("simclr:size=16", ROLES["augment"]).keywords == {"size": 16}  # pyright: ignore
    assert names.find("simclr:size=None", ROLES["augment"]).keywords == {"size": None}  # pyright: ignore


def test_knobs_out_of_range_are_refused() -> None:
    z = torch.ones(2, 2)
    with pytest.raises(BadInput, match="temperature is -1"):
        losses.info_nce(z, z, temperature=-1)
    with pytest.raises(BadInput, match="trust must be positive"):
        optim.lars([torch.nn.Parameter(z)], lr=torch.tensor(0.1), weight_decay=0.0, trust=-1)
    with pytest.raises(BadInput, match="width is 0"):
        backbones.small_net(1, width=0)
    with pytest.raises(BadInput, match="pad is -3"):
        backbones.resnet18(3, pad=-3)
    for knobs, said in (({"min_scale": 2.0}, "min_scale is 2.0"), ({"jitter": 3.0}, "jitter is 3.0: give a strength")):
        for view in (augment.simclr, augment.gentle):
            with pytest.raises(BadInput, match=said):  # when the run is made: nothing was written or replaced yet
                Run(augment=partial(view, **knobs))


def test_roles_hold_what_the_rooms_define_and_nothing_else() -> None:
    assert set(ROLES["data"].functions()) == set(RECIPES)
    assert set(ROLES["augment"].functions()) == {"simclr", "gentle", "crop_flip", "none"}
    assert set(ROLES["optimizer"].functions()) == {"lars", "sgd", "adamw"}
    assert "info_nce" in ROLES["loss"].functions() and "unit_rows" not in ROLES["loss"].functions()


def test_every_recipe_has_a_gentle_optimiser_for_the_spectral_loss() -> None:
    for name, plain in RECIPES.items():
        assert recipe(name) == plain and recipe(name, losses.supcon) == replace(plain, loss=losses.supcon)
        cut = partial(losses.spectral, l1=0.01)
        found = recipe(name, cut)
        assert found.loss is cut
        changed = {k for k, v in found.to_json().items() if v != plain.to_json()[k]}
        assert changed <= {"loss", "optimizer", "lr"} and found.optimizer is optim.adamw
        assert found.lr == (5e-4 if found.backbone is backbones.resnet18 else 3e-3)
    with pytest.raises(BadInput, match="unknown data set 'digit'"):
        recipe("digit")


def test_code_from_outside_is_custom_in_a_file_and_refused_from_one() -> None:
    run = Run(map=lambda z: z.square(), augment=augment.none, optimizer=optim.sgd)
    assert run.to_json()["map"] == names.CUSTOM
    with pytest.raises(BadInput, match=r"not one of nonneg's"):
        from_json(run.to_json(), WHERE)
    with pytest.raises(BadInput, match=r"run\.json: unknown map 'os\.system'"):
        from_json({**Run().to_json(), "map": "os.system"}, WHERE)
    with pytest.raises(BadInput, match=r"'evil' is no field"):
        from_json({**Run().to_json(), "evil": 1}, WHERE)
    with pytest.raises(BadInput, match=r"must be a name"):
        from_json({**Run().to_json(), "loss": ["x"]}, WHERE)


@pytest.mark.parametrize(
    "bad",
    [
        {"epochs": 0},
        {"batch_size": 1},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"lr": float("inf")},
        {"seed": 2**63},
        {"projector": (0,)},
        {"seed": -1},
    ],
)
def test_impossible_values_are_refused(bad: dict) -> None:
    with pytest.raises(BadInput, match="must be"):
        Run(**bad)


def test_cl_and_ncl_differ_in_one_word() -> None:
    cl = replace(Run(), map=maps.identity).to_json()
    ncl = Run().to_json()
    assert {k for k in cl if cl[k] != ncl[k]} == {"map"}


def test_a_missing_gpu_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        assert Run().torch_device().type == "cpu"
        assert Run(device="cuda").torch_device().type == "cpu"
        assert "no GPU here; computing on the CPU" in capsys.readouterr().err
    for name in ("gpu", "mps", "meta"):
        with pytest.raises(BadInput, match=f"unknown device '{name}'"):
            Run(device=name).torch_device()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert Run(device="cuda:1").torch_device().index == 1
    with pytest.raises(BadInput, match="--device cuda:2: the GPUs here are cuda:0 to cuda:1"):
        Run(device="cuda:2").torch_device()


def test_the_rate_rises_to_its_share_of_the_batch_and_falls_to_nothing() -> None:
    rate = replace(RECIPES["cifar10"], lr=0.4, batch_size=128, epochs=11, warmup_epochs=1).rate(10)
    found = [rate(torch.tensor(step)).item() for step in (0, 10, 60, 110)]
    assert found == pytest.approx([3e-5, 0.2, 0.1, 0.0], abs=1e-4)
    short = replace(RECIPES["cifar10"], lr=0.4, batch_size=256, epochs=1, warmup_epochs=10).rate(10)
    assert short(torch.tensor(0)).item() == pytest.approx(0.4)  # one epoch has no warm-up
