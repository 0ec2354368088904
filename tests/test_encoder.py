"""Backbones and the encoder: shapes, parameter counts, and that loading rebuilds the exact model."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn

from nonneg import backbones, encoder, files, maps
from nonneg.encoder import BACKBONE, Encoder
from nonneg.errors import BadInput


@pytest.mark.parametrize(
    ("make", "stem", "parameters", "dim"),
    [  # the counts of the usual networks without their classifier
        (backbones.resnet18, "imagenet", 11_176_512, 512),
        (backbones.resnet34, "imagenet", 21_284_672, 512),
        (backbones.resnet50, "imagenet", 23_508_032, 2048),
        (backbones.resnet18, "small", 11_176_512 - 64 * 3 * (49 - 9), 512),
    ],
)
def test_resnets_have_the_usual_size(make, stem: str, parameters: int, dim: int) -> None:
    net = make(3, stem=stem)
    assert sum(p.numel() for p in net.parameters()) == parameters
    assert net.dim == dim
    assert net.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, dim)


def test_a_narrow_resnet_has_every_layer_in_proportion() -> None:
    wide, narrow = (dict(backbones.resnet18(3, width=width).named_parameters()) for width in (64, 16))
    assert narrow["conv1.weight"].shape == (16, 3, 3, 3) and backbones.resnet18(3, width=16).dim == 128
    assert all(4 * v.shape[0] == wide[k].shape[0] for k, v in narrow.items())
    assert all(4 * v.shape[1] == wide[k].shape[1] for k, v in narrow.items() if v.ndim > 1 and k != "conv1.weight")
    with pytest.raises(BadInput, match=r"width is 0; it must be at least 1"):
        backbones.resnet18(3, width=0)


@pytest.mark.parametrize(("pad", "size"), [(1, 32), (2, 34)])
def test_the_small_stem_keeps_the_resolution(pad: int, size: int) -> None:
    net = backbones.resnet18(3, pad=pad)
    assert isinstance(net.conv1, nn.Conv2d) and isinstance(net.maxpool, nn.Identity)
    assert net.conv1(torch.zeros(1, 3, 32, 32)).shape[-1] == size


@pytest.mark.parametrize("pad", [1, 2])
@pytest.mark.parametrize("channels", [1, 3])
def test_the_stem_as_a_matrix_product_is_the_convolution(pad: int, channels: int) -> None:
    conv = backbones.resnet18(channels, pad=pad).conv1
    assert isinstance(conv, nn.Conv2d)
    x = torch.randn(2, channels, 16, 16)
    torch.testing.assert_close(backbones.stem_product(x, conv), conv(x), rtol=1e-4, atol=1e-5)


def test_every_backbone_function_declares_its_width() -> None:
    for name, make in BACKBONE.functions().items():
        if name != "timm":
            net = make(1)
            assert net.eval()(torch.zeros(2, 1, 16, 16)).shape == (2, net.dim)


def test_timm_is_asked_for_by_name_and_missed_in_one_sentence() -> None:
    try:
        import timm  # noqa: F401
    except (ImportError, RuntimeError):  # the second where its torchvision does not fit this torch
        with pytest.raises(BadInput, match=r"timm:resnet10t needs the timm package"):
            backbones.timm(3, name="resnet10t")
    else:
        assert backbones.timm(3, name="resnet10t").dim == 512


@pytest.mark.parametrize("map", [maps.identity, maps.rep_relu, maps.exp])
@pytest.mark.parametrize("projector", [(), (8,), (32, 16, 8)])
def test_loading_rebuilds_the_exact_model(tmp_path: Path, map, projector: tuple[int, ...]) -> None:
    made = Encoder(partial(backbones.small_net, width=4), projector=projector, map=map, channels=1).eval()
    made(torch.rand(8, 1, 16, 16))
    encoder.save(made, tmp_path)
    loaded = encoder.load(tmp_path)
    assert loaded.map is map
    x = torch.rand(5, 1, 16, 16)
    assert torch.equal(loaded(x), made(x))
    assert loaded(x).shape == (5, projector[-1] if projector else 16)


@pytest.mark.parametrize("backbone", [backbones.resnet18, partial(backbones.resnet50, stem="imagenet")])
def test_a_resnet_comes_back_in_the_state_it_was_trained_to(tmp_path: Path, backbone) -> None:
    made = Encoder(backbone, projector=(8,)).train()
    made(torch.rand(4, 3, 32, 32))  # moves the running statistics
    encoder.save(made.eval(), tmp_path)
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(encoder.load(tmp_path)(x), made(x))


class Own(nn.Module):
    dim = 12

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x.flatten(1))


def test_any_module_with_dim_is_a_backbone_and_is_passed_in_again(tmp_path: Path) -> None:
    made = Encoder(Own(), projector=(6,), channels=1).eval()
    encoder.save(made, tmp_path)
    with pytest.raises(BadInput, match=r"backbone is not one of nonneg's"):
        encoder.load(tmp_path)
    x = torch.rand(3, 1, 4, 4)
    assert torch.equal(encoder.load(tmp_path, backbone=Own())(x), made(x))
    with pytest.raises(BadInput, match=r"no integer \.dim"):
        Encoder(nn.Linear(3, 3))


def test_a_truncated_model_is_named(tmp_path: Path) -> None:
    encoder.save(Encoder(backbones.small_net, projector=(4,), channels=1), tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(BadInput, match=r"model\.safetensors is damaged or truncated"):
        encoder.load(tmp_path)


def test_a_description_that_is_no_description_is_named(tmp_path: Path) -> None:
    encoder.save(Encoder(backbones.small_net, projector=(4,), channels=1), tmp_path)
    for broken in ([1], {}, {"backbone": "small_net"}):
        files.write_json(tmp_path / "encoder.json", broken)
        with pytest.raises(BadInput, match=r"encoder\.json is damaged"):
            encoder.load(tmp_path)


@pytest.mark.parametrize("text", ["os.system", "torch.nn.Identity", "resnet18:stem=evil", "_ResNet", "output_width"])
def test_a_description_cannot_name_code_from_elsewhere(tmp_path: Path, text: str) -> None:
    encoder.save(Encoder(backbones.small_net, projector=(4,), channels=1), tmp_path)
    about = files.read_json(tmp_path / "encoder.json")
    files.write_json(tmp_path / "encoder.json", {**about, "backbone": text})
    with pytest.raises(BadInput, match="unknown"):
        encoder.load(tmp_path)


def test_normalisation_is_part_of_the_model() -> None:
    made = Encoder(Own(), projector=(), map=maps.identity, channels=1, mean=[0.2], std=[0.5]).eval()
    x = torch.rand(3, 1, 4, 4)
    torch.testing.assert_close(made(x), made.backbone((x - 0.2) / 0.5))
