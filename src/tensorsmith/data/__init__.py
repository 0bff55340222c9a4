"""Data: datasets, loaders, the digits that come with the package, MNIST-format files by path."""

from tensorsmith.data import transforms as transforms
from tensorsmith.data.collate import default_collate, default_convert
from tensorsmith.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from tensorsmith.data.device_batches import Prefetcher
from tensorsmith.data.digits import Digits, load_digits
from tensorsmith.data.folders import ImageFolder, TextLines
from tensorsmith.data.idx import find_idx_pair, load_idx
from tensorsmith.data.images import IdxImages, Images
from tensorsmith.data.loader import DataLoader
from tensorsmith.data.sampler import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from tensorsmith.data.worker_process import WorkerInfo, get_worker_info

__all__ = [
    "BatchSampler",
    "ChainDataset",
    "ConcatDataset",
    "DataLoader",
    "Dataset",
    "Digits",
    "DistributedSampler",
    "IdxImages",
    "ImageFolder",
    "Images",
    "IterableDataset",
    "Prefetcher",
    "RandomSampler",
    "Sampler",
    "SequentialSampler",
    "StackDataset",
    "Subset",
    "SubsetRandomSampler",
    "TensorDataset",
    "TextLines",
    "WeightedRandomSampler",
    "WorkerInfo",
    "default_collate",
    "default_convert",
    "find_idx_pair",
    "get_worker_info",
    "load_digits",
    "load_idx",
    "random_split",
    "transforms",
]
