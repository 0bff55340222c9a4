"""Train a perceptron on the handwritten digits, save it, load it again.

    python examples/train_mlp.py [FILE]
"""

import sys

import tensorsmith as ts
from tensorsmith import nn, optim
from tensorsmith.data import DataLoader, Digits

FILE = sys.argv[1] if len(sys.argv) > 1 else "digits.safetensors"

ts.manual_seed(0)
train, test = Digits(train=True), Digits(train=False)
model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
optimizer = optim.AdamW(model.parameters(), lr=3e-3)
loss_function = nn.CrossEntropyLoss()


def accuracy(network):
    """The share of test images that are classified right."""
    network.eval()
    with ts.no_grad():
        return (network(test.images).argmax(1) == test.labels).float().mean().item()


for epoch in range(12):
    model.train()
    for images, labels in DataLoader(train, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        loss = loss_function(model(images), labels)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch + 1:2d}  loss {loss.item():.4f}  test accuracy {accuracy(model):.4f}")

ts.save(model.state_dict(), FILE)
fresh = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))
fresh.load_state_dict(ts.load(FILE))
print(f"reloaded from {FILE}: test accuracy {accuracy(fresh):.4f}")
