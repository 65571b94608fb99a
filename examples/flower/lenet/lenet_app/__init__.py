"""LeNet-5 in PyTorch, over Flower."""
