"""Finetune: a finished network at another resolution, for other classes, trained on from its weights."""

from __future__ import annotations

from typing import Any

from tailorvit.methods.finish import finish
from tailorvit.methods.session import Session
from tailorvit.methods.start import Start, earlier_splits, open_start
from tailorvit.search import Candidate
from tailorvit.train import accuracy


def finetune(session: Session) -> dict[str, Any]:
    """Train the network the run starts from on the run's data."""
    start = open_start(session.config, session.run.folder)
    assert start is not None  # the run was prepared with it
    settings, (arch, _) = session.config.final.train, start.target(session.data)
    same = start.same_classes(session.data)
    session.tell_once("start", _opening(session, start, same))
    earlier = earlier_splits(session.config)
    if earlier is not None and earlier.get("fingerprint") == session.data.fingerprint:
        session.tell_once("splits", "The splits are those of the run the network comes from, on the same images.")
    elif same:
        session.tell_once(
            "warning",
            "The starting network knows the same classes, and which images it was trained on is not known here: "
            "some test images may be among them, and the test accuracy then says too much.",
        )
    model = session.plain(arch, settings, "final", start.resized(session.data, session.seed, settings.drop_path))
    percent = accuracy(model, session.search_batches(), session.device)
    trial = session.trial(Candidate(arch, "given"), percent, 0)
    # Where a full disk refused the weights, finish trains again, and must not begin with random ones.
    result = finish(session, [trial], None, start.resized(session.data, session.seed, settings.drop_path))
    facts: dict[str, Any] = {
        "network": session.config.start.network,
        "sha256": start.checksum,
        "image_size": list(start.size),
        "classes": len(start.network.card.classes),
        "head": "kept" if same else "new",
    }
    if same:  # a new head has learnt nothing: its accuracy would be chance
        untuned = start.resized(session.data, session.seed).to(session.device).eval()
        facts["search_accuracy"] = accuracy(untuned, session.search_batches(), session.device)
        facts["test_accuracy"] = accuracy(untuned, session.batches("test"), session.device)
    return {**result, "final": "finetune", "start": facts}


def _opening(session: Session, start: Start, same: bool) -> str:
    (high, wide), (new_high, new_wide) = start.size, session.data.image_size
    size = (
        f"stays at {high}x{wide} px"
        if (high, wide) == (new_high, new_wide)
        else (f"goes from {high}x{wide} to {new_high}x{new_wide} px")
    )
    head = "its head is kept" if same else f"a new head tells {len(session.data.classes)} classes apart"
    return f"the starting network {size}; {head}"
