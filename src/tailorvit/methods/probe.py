"""A linear probe: what a linear classifier makes of a frozen network's features."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tailorvit.families.network import PlainNetwork

if TYPE_CHECKING:
    from tailorvit.methods.session import Batches, Session

PENALTIES = (0.001, 0.01, 0.1, 1.0, 10.0, 100.0)  # scikit-learn's C, on features of unit variance
STEPS = 1000  # of the solver


def linear_probe(session: Session, model: PlainNetwork, stage: str) -> tuple[nn.Module, float]:
    """The network with a logistic regression as its head, and the C that was best on the search images, once.

    Training images are seen once each, without augmentation; the network itself stays as it is. Of equal penalties the
    stronger one is taken.
    """
    model = model.to(session.device).eval()
    if session.load_stage(model, stage):
        facts = dict(session.run.result(stage) or {})
        return model.to(session.device).eval(), float(facts["C"])
    with session.timed(stage):
        x, y = pooled(model, session.data.eval_batches("train", session.config.evaluate.batch), session.device)
        seen, truth = pooled(model, session.search_batches(), session.device)
        weight, bias, penalty = regression(x, y, seen, truth, len(session.data.classes))
        put(model, weight, bias)
        facts = {"C": penalty}
        session.save_stage(model, stage, facts)
    session.run.finish(stage, facts)
    return model, penalty


@torch.no_grad()
def pooled(model: PlainNetwork, batches: Batches, device: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """What the classifier would see of every image, and the labels."""
    features, labels = [], []
    for x, y in batches:
        features.append(model.forward_head(model.forward_features(x.to(device)), pre_logits=True).double().cpu())
        labels.append(y.cpu())
    return torch.cat(features).numpy(), torch.cat(labels).numpy()


def regression(
    x: NDArray[np.float64],
    y: NDArray[np.int64],
    seen: NDArray[np.float64],
    truth: NDArray[np.int64],
    classes: int,
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Weights and biases of all classes for features as they are, and the C that is best on other images."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    mean, spread = x.mean(0), x.std(0)
    spread = np.where(spread > 0, spread, 1.0)
    best: tuple[float, LogisticRegression, float] | None = None
    for penalty in PENALTIES:
        fitted = LogisticRegression(C=penalty, max_iter=STEPS)
        with warnings.catch_warnings():
            # A weak penalty that is not solved to the end is judged like the others, on the search images.
            warnings.simplefilter("ignore", ConvergenceWarning)
            fitted.fit((x - mean) / spread, y)
        right = float((fitted.predict((seen - mean) / spread) == truth).mean()) if len(truth) else 0.0
        if best is None or right > best[0]:
            best = right, fitted, penalty
    assert best is not None
    _, fitted, penalty = best
    found, offset = fitted.coef_, fitted.intercept_
    if len(fitted.classes_) == 2:  # scikit-learn keeps one row for two classes
        found, offset = np.concatenate([-found / 2, found / 2]), np.concatenate([-offset / 2, offset / 2])
    weight, bias = np.zeros((classes, x.shape[1])), np.full(classes, -1e6)  # a class without training images
    weight[fitted.classes_] = found / spread
    bias[fitted.classes_] = offset - weight[fitted.classes_] @ mean
    return weight, bias, penalty


@torch.no_grad()
def put(model: PlainNetwork, weight: NDArray[np.float64], bias: NDArray[np.float64]) -> None:
    """Make these the weights of the network's classifier."""
    last = [m for m in model.get_classifier().modules() if isinstance(m, nn.Linear)][-1]
    cast(nn.Parameter, last.weight).copy_(torch.from_numpy(weight))
    last.bias.copy_(torch.from_numpy(bias))
