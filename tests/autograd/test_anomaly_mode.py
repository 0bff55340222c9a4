"""Anomaly mode: the node is named, the user's line shown, the mode restored."""

import warnings

import pytest

import tensorsmith as ts
from tensorsmith.autograd import detect_anomaly, is_anomaly_enabled, set_detect_anomaly


def nan_in_the_backward():
    x = ts.tensor([0.0, 1.0], requires_grad=True)
    return (x * 0.0).sqrt() * 0.0  # line of the culprit: 0 * inf in the backward of sqrt


def failure(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with pytest.raises(RuntimeError) as error:
            run()
    return str(error.value), "".join(str(w.message) for w in caught)


def test_names_the_node_and_the_line():
    def run():
        with detect_anomaly():
            nan_in_the_backward().sum().backward()

    message, warned = failure(run)
    assert message == "Function 'SqrtBackward0' returned nan values in its 0th output."
    assert "Error detected in SqrtBackward0" in warned and "line of the culprit" in warned
    assert "only be enabled for debugging" in warned and "tensorsmith/eager" not in warned
    assert not is_anomaly_enabled()


def test_without_it_the_nan_passes():
    nan_in_the_backward().sum().backward()


def test_forward_outside_of_the_mode():
    y = nan_in_the_backward().sum()

    def run():
        with set_detect_anomaly(True):
            y.backward()

    message, warned = failure(run)
    assert "SqrtBackward0" in message and "No forward pass information available" in warned


def test_grad_checks_too():
    x = ts.tensor([0.0], requires_grad=True)

    def run():
        with set_detect_anomaly(True):
            ts.autograd.grad((x.sqrt() * 0.0).sum(), x)

    assert "SqrtBackward0" in failure(run)[0]


def test_nan_check_can_be_left_out():
    with set_detect_anomaly(True, check_nan=False):
        nan_in_the_backward().sum().backward()
    set_detect_anomaly(True)
    assert is_anomaly_enabled()
    set_detect_anomaly(False)
    assert not is_anomaly_enabled()


def test_errors_of_a_backward_show_the_line():
    class Fails(ts.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise RuntimeError("mine")

    def run():
        with set_detect_anomaly(True):
            Fails.apply(ts.tensor([1.0], requires_grad=True)).sum().backward()  # the call

    message, warned = failure(run)
    assert message == "mine" and "FailsBackward" in warned and "# the call" in warned
