#!/usr/bin/env python3
"""Train the small CNN that digits.c runs, and write digits.safetensors beside this script.

    pip install torch numpy scikit-learn safetensors
    python3 train_digits.py

The data are scikit-learn's 8x8 digits (1797 images, pixel values 0..16): 1397 to train on, 400 held out. The file
holds the weights (f32, PyTorch's names and layouts), the held-out images ("images", u8 [400, 1, 8, 8]) and their
labels ("labels", i64 [400]). One thread and fixed seeds: running it again on the same PyTorch gives the same file.
"""
import os

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import save_file
from sklearn.datasets import load_digits

HELD_OUT = 400


class Digits(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.fc1 = nn.Linear(512, 64)
        self.fc2 = nn.Linear(64, 10)

    def forward(self, images):
        x = images.float() * (1 / 16)
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def main():
    torch.manual_seed(7)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    data = load_digits()
    order = np.random.default_rng(7).permutation(len(data.target))
    images = torch.from_numpy(data.images[order].astype(np.uint8)).unsqueeze(1)
    labels = torch.from_numpy(data.target[order].astype(np.int64))
    train_x, train_y = images[HELD_OUT:], labels[HELD_OUT:]
    test_x, test_y = images[:HELD_OUT], labels[:HELD_OUT]

    model = Digits()
    epochs, batch = 30, 64
    steps = epochs * -(-len(train_y) // batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=4e-3, total_steps=steps)
    for epoch in range(epochs):
        model.train()
        for pick in torch.randperm(len(train_y)).split(batch):
            loss = F.cross_entropy(model(train_x[pick]), train_y[pick], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()
    with torch.inference_mode():
        accuracy = (model(test_x).argmax(1) == test_y).float().mean().item()
    print(f"held-out accuracy {accuracy:.4f} on {HELD_OUT} images")
    assert accuracy >= 0.98, accuracy

    tensors = {name: value.contiguous() for name, value in model.state_dict().items()}
    tensors["images"], tensors["labels"] = test_x.contiguous(), test_y.contiguous()
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "digits.safetensors")
    save_file(tensors, path)
    print(f"wrote {path}: {os.path.getsize(path)} bytes")


if __name__ == "__main__":
    main()
