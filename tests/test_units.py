from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tailorvit.errors import TailorError
from tailorvit.units import parse, show


@pytest.mark.parametrize(
    ("text", "metric", "value"),
    [
        ("30M", "params", 30e6),
        (" 500 k ", "params", 500e3),
        ("1.5G", "macs", 1.5e9),
        (".5T", "macs", 5e11),
        ("2e6", "params", 2e6),
        (18_000_000, "params", 18e6),
        ("12ms", "latency", 0.012),
        ("0.5s", "latency", 0.5),
        ("250us", "latency", 250e-6),
        ("512MiB", "memory", 512 * 2**20),
        ("2GB", "memory", 2e9),
        ("64", "memory", 64),
    ],
)
def test_parse(text, metric, value):
    assert parse(text, metric) == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize(("text", "metric", "value"), [("5µs", "latency", 5e-6), ("5μs", "latency", 5e-6)])
def test_micro_has_three_spellings(text, metric, value):
    assert parse(text, metric) == value == parse("5us", metric)
    assert parse("2kB", "memory") == parse("2KB", "memory") == 2000


@given(st.integers(1, 999_999), st.sampled_from(["k", "M", "G"]))
def test_a_size_with_decimals_is_exact(thousandths, unit):
    """A limit is inclusive: 1.001M holds a network of 1,001,000 parameters."""
    text = f"{thousandths // 1000}.{thousandths % 1000:03d}{unit}"
    assert parse(text, "params") == thousandths * {"k": 1, "M": 10**3, "G": 10**6}[unit]


@pytest.mark.parametrize(
    ("text", "metric", "hint"),
    [
        ("30Q", "params", "30M or 500k"),
        ("much", "macs", "1.5G or 200M"),
        ("12M", "latency", "12ms or 0.5s"),
        ("", "memory", "512MiB or 2GiB"),
        ("-5M", "params", "30M or 500k"),
        ("1.2.3", "params", "30M or 500k"),
    ],
)
def test_unreadable_is_named_with_an_example(text, metric, hint):
    with pytest.raises(TailorError) as error:
        parse(text, metric)
    assert f"'{text}'" in str(error.value) and metric in str(error.value) and hint in str(error.value)


@pytest.mark.parametrize("value", [0, -3, "0M", float("inf"), float("nan"), "1e999"])
def test_limits_are_positive_and_finite(value):
    with pytest.raises(TailorError, match="above zero and finite"):
        parse(value, "params")


@pytest.mark.parametrize(
    ("value", "metric", "text"),
    [
        (22_891_432, "params", "22.89M"),
        (999, "params", "999"),
        (30e6, "params", "30M"),
        (4_598_882_304, "macs", "4.599G"),
        (0.0123, "latency", "12.3 ms"),
        (2.5, "latency", "2.5 s"),
        (512 * 2**20, "memory", "512 MiB"),
        (10, "memory", "10 B"),
        (5e15, "macs", "5000T"),
    ],
)
def test_show(value, metric, text):
    assert show(value, metric) == text


@settings(deadline=None)
@given(st.integers(1, 10**14), st.sampled_from(["params", "macs"]))
def test_what_is_shown_reads_back(value, metric):
    assert parse(show(value, metric), metric) == pytest.approx(value, rel=1e-3)


@settings(deadline=None)
@given(st.floats(1e-5, 100))
def test_latency_shown_reads_back(value):
    assert parse(show(value, "latency"), "latency") == pytest.approx(value, rel=1e-2)
