"""LeNet-5 for images of 28 × 28."""

from fedpace.errors import needs

with needs("LeNet-5 needs torch", "torch"):
    from torch import nn


def lenet5(classes: int = 10) -> nn.Sequential:
    """Return LeNet-5 as it is used today: rectified linear units and maximum pooling.

    Two convolutions of 5 × 5 (6 and 16 channels) and three linear layers (120, 84, `classes`),
    initialised as PyTorch does. Pooling comes before rectifying, which gives the same function on
    a quarter of the values. Differs from [Luo22], which states w_0 = 0: there every layer but
    the last has a zero gradient, so that only the last intercept could ever train.

    >>> sum(each.numel() for each in lenet5().parameters())
    61706
    """
    return nn.Sequential(
        nn.Conv2d(1, 6, kernel_size=5, padding=2),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(6, 16, kernel_size=5),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(400, 120),
        nn.ReLU(),
        nn.Linear(120, 84),
        nn.ReLU(),
        nn.Linear(84, classes),
    )
