"""Modules as users have them, small, with a gradient that plain autograd takes of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from privbench.auditing.inputs import Received
from privbench.auditing.observed import artifact_of
from privbench.data.readers import download
from privbench.networks.module_model import model_of
from privbench.networks.module_parts import InputForm
from privbench.tensors import Params
from privbench.types import Artifact


class FlowerCNN(nn.Module):
    """The CNN of Flower's PyTorch tutorial, for 3x32x32 images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.pool = nn.MaxPool2d(2, 2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(F.relu(self.conv1(x)))
        x = self.pool(F.relu(self.conv2(x)))
        x = x.view(-1, 16 * 5 * 5)
        x = F.relu(self.fc1(x))
        x = F.relu(self.fc2(x))
        return self.fc3(x)


def flower_cnn() -> nn.Module:
    torch.manual_seed(0)
    return FlowerCNN()


def torchvision_resnet18() -> nn.Module:
    torch.manual_seed(0)
    return _torchvision_models().resnet18(num_classes=10)


def vit_tiny() -> nn.Module:
    torch.manual_seed(0)
    made = _torchvision_models().VisionTransformer(
        image_size=32, patch_size=8, num_layers=2, num_heads=2, hidden_dim=16, mlp_dim=32, num_classes=10
    )
    # torchvision's last layer begins at zero, where no image has a gradient beyond it.
    nn.init.normal_(made.heads.head.weight, std=0.1)
    whole: nn.Module = made
    return whole


def _torchvision_models() -> Any:
    # Makes torchvision importable also beside a build of torch that its operators do not load with.
    download.torchvision_datasets()
    from torchvision import models

    return models


def mlp(inputs: int = 30, classes: int = 2) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 16), nn.ReLU(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, classes))


def gradient_of(module: nn.Module, entered: Tensor, labels: Tensor, *, train: bool = False) -> Params:
    """The gradient of the mean cross-entropy over every parameter, by backward() on the module itself."""
    module.train(train)
    module.zero_grad()
    F.cross_entropy(module(entered), labels).backward()
    gradients: Params = {}
    for name, parameter in module.named_parameters():
        assert parameter.grad is not None
        gradients[name] = parameter.grad.clone()
    module.zero_grad(set_to_none=True)
    return gradients


PICTURES = (3, 32, 32)


def form_of(shape: tuple[int, int, int] = PICTURES, mean: float = 0.5, std: float = 0.25) -> InputForm:
    """Images in [0, 1], normalised by one mean and standard deviation; a shape of one pixel is a vector's."""
    zero, one = torch.zeros(1), torch.ones(1)
    return InputForm(shape, zero, one, mean * one, std * one, is_vector=shape[1:] == (1, 1))


def seen_by_server(
    module: nn.Module, images: Tensor, labels: Tensor, *, form: InputForm, train: bool = False, **declared: Any
) -> Artifact:
    """The artifact of the gradients of V batches, [V, B, C, H, W] in [0, 1] with labels [V, B], taken by plain autograd."""
    each = [gradient_of(module, form.entered(x), y, train=train) for x, y in zip(images, labels, strict=True)]
    messages = {name: torch.stack([one[name] for one in each]) for name in each[0]}
    model = model_of(module, form, train=train, **declared)
    return artifact_of(model, Received("gradient", messages, batch_size=images.shape[1]))
