"""Data: datasets, loaders, the digits that come with the package, MNIST-format files by path."""

from tensorsmith.data.collate import default_collate, default_convert
from tensorsmith.data.dataset import ConcatDataset, Dataset, Subset, TensorDataset, random_split
from tensorsmith.data.digits import Digits, load_digits
from tensorsmith.data.idx import find_idx_pair, load_idx
from tensorsmith.data.images import IdxImages, Images
from tensorsmith.data.loader import DataLoader
from tensorsmith.data.sampler import BatchSampler, RandomSampler, Sampler, SequentialSampler, SubsetRandomSampler

__all__ = [
    "BatchSampler",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "Digits",
    "IdxImages",
    "Images",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "default_collate",
    "default_convert",
    "find_idx_pair",
    "load_digits",
    "load_idx",
    "random_split",
]
