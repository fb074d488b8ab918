"""One training loop for supernets and single networks, the rules that pick architectures, and evaluation."""

from tailorvit.train.evaluate import Evaluator, accuracy, class_scores, hits
from tailorvit.train.loop import Sink, Trained, train
from tailorvit.train.rules import RULES, Fixed, Rule, Sandwich, SinglePath, rule_for
from tailorvit.train.settings import TrainSettings
from tailorvit.train.teacher import Teacher

__all__ = [
    "RULES",
    "Evaluator",
    "Fixed",
    "Rule",
    "Sandwich",
    "SinglePath",
    "Sink",
    "Teacher",
    "TrainSettings",
    "Trained",
    "accuracy",
    "class_scores",
    "hits",
    "rule_for",
    "train",
]
