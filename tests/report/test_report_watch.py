"""Watching a run: live, from this machine only, and without a trace in the folder."""

from __future__ import annotations

import base64
import hashlib
import importlib
import json
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

from tailorvit.arch import Arch
from tailorvit.errors import TailorError
from tailorvit.report import collect, render
from tailorvit.report.page import page_parts
from tailorvit.report.snapshot import copy_database, snapshot
from tailorvit.runs import Run

module = importlib.import_module("tailorvit.report.watch")  # the package may export the function by this name
watch, SCRIPT = module.watch, module.SCRIPT
WRITER = """
import sys, time
from pathlib import Path
from tailorvit.arch import Arch
from tailorvit.runs import Run
with Run.create(Path(sys.argv[1]), "method = 's4'", {}) as run:
    print("begun", flush=True)
    for i in range(1, int(sys.argv[2]) + 1):
        rows = [{"arch": Arch("vit", depth=i, embed=j), "accuracy": float(i)} for j in range(20)]
        run.record_trials("search", rows)
        run.record_epoch("supernet-0", i, loss=1 / i, accuracy=float(i))
        if i % 25 == 0:
            run._database._link.execute("PRAGMA wal_checkpoint(RESTART)")
        time.sleep(float(sys.argv[3]))
    run.write_json("result", {"method": "s4", "test_accuracy": 88.0})
print("done", flush=True)
"""


@contextmanager
def serving(folder):
    """A watcher in a thread; gives its address."""
    stop, reported = threading.Event(), []
    ready = threading.Event()
    done = threading.Thread(target=watch, args=(folder, 0, lambda url: (reported.append(url), ready.set()), stop))
    done.start()
    try:
        assert ready.wait(10)
        yield reported[0]
    finally:
        stop.set()
        done.join(10)
        assert not done.is_alive()


def ask(url, method="GET", **headers):
    request = urllib.request.Request(url, method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.headers, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read().decode()


def state(url):
    return json.loads(ask(f"{url}state")[2])


def until(question, seconds=15.0):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if question():
            return True
        time.sleep(0.05)
    return False


def contents(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """Redraw as soon as something changed; one test below looks at the share of time itself."""
    monkeypatch.setattr(module, "SHARE", 1e9)


def test_the_page_the_state_and_nothing_else(make):
    folder = make()
    with serving(folder) as url:
        code, head, page = ask(url)
        assert code == 200 and head["Content-Type"] == "text/html; charset=utf-8"
        assert "63.50 %" in page and page.count("<main>") == 1
        reported = state(url)
        assert reported["status"] == "finished" and reported["trials"] > 60 and 60 < reported["best"] < 67
        assert f'content="{reported["version"]}"' in page
        for path in ("index.html", "run.db", "result.json", "../run.db", "%2e%2e/run.db", "state/", "state?x", "?x"):
            code, head, text = ask(f"{url}{path}")
            assert (code, text) == (404, "Not found.\n"), path


def test_headers_close_every_door(make):
    with serving(make()) as url:
        for path, policy in (("", "script-src"), ("state", "default-src 'none'"), ("none", "default-src 'none'")):
            head = ask(f"{url}{path}")[1]
            assert head["Cache-Control"] == "no-store" and head["X-Content-Type-Options"] == "nosniff"
            assert head["Referrer-Policy"] == "no-referrer" and head["X-Frame-Options"] == "DENY"
            assert policy in head["Content-Security-Policy"]
            assert "frame-ancestors 'none'" in head["Content-Security-Policy"]
            assert "Access-Control-Allow-Origin" not in head and "Python" not in head["Server"]


def test_the_policy_allows_exactly_the_scripts_on_the_page(make):
    with serving(make()) as url:
        _, head, page = ask(url)
    policy = head["Content-Security-Policy"]
    inside = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page).group(1)
    assert policy.startswith(inside), "header and page agree, or the stricter of the two would stop the script"
    rules = {rule.split()[0]: rule.split()[1:] for rule in inside.split(";")}
    scripts = re.findall(r"<script>(.*?)</script>", page, re.S)
    prints = {f"'sha256-{base64.b64encode(hashlib.sha256(s.encode()).digest()).decode()}'" for s in scripts}
    assert set(rules["script-src"]) == prints and SCRIPT in scripts
    assert rules["connect-src"] == ["'self'"] and rules["default-src"] == ["'none'"]


def test_a_written_report_is_not_live(make):
    text = render(collect(make()))
    assert "connect-src" not in text and "fetch(" not in text and "tailorvit-version" not in text


def test_other_methods_and_other_hosts_are_refused(make):
    with serving(make()) as url:
        port = url.rsplit(":", 1)[1].strip("/")
        for method in ("POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "MADEUP"):
            code, head, text = ask(url, method)
            assert (code, head["Allow"], text) == (405, "GET, HEAD", "Method Not Allowed.\n"), method
        code, head, text = ask(url, "HEAD")
        assert code == 200 and text == "" and int(head["Content-Length"]) > 1000
        assert ask(url, Host=f"localhost:{port}")[0] == 200
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1", "localhost:1", "", f"127.0.0.1:{port}.evil"):
            assert ask(url, Host=host)[::2] == (403, "Forbidden.\n"), host
            assert ask(f"{url}state", Host=host)[0] == 403
        with socket.create_connection(("127.0.0.1", int(port)), 5) as link:
            link.sendall(b"GET / HTTP/1.0\r\n\r\n")
            assert b" 403 " in link.makefile("rb").readline(), "no host at all"
        with socket.create_connection(("127.0.0.1", int(port)), 5) as link:
            link.sendall(b"<script>alert(1)</script> nonsense\r\n\r\n")
            answer = link.makefile("rb").read()
            assert b"script>" not in answer, "nothing of a broken request comes back"


def test_it_listens_on_this_machine_only(make):
    with serving(make()) as url:
        port = int(url.rsplit(":", 1)[1].strip("/"))
        assert url.startswith("http://127.0.0.1:")
        with socket.socket() as other:  # 127.0.0.2 is this machine too, yet not the address bound
            assert other.connect_ex(("127.0.0.2", port)) != 0


def test_drawn_once_while_nothing_changes(make, monkeypatch):
    folder, count = make(), []
    monkeypatch.setattr(module, "page_parts", lambda facts: count.append(1) or page_parts(facts))
    with serving(folder) as url:
        first = state(url)["version"]
        assert ask(url)[2] == ask(url)[2] and state(url)["version"] == first and len(count) == 1
        with Run.open(folder) as run:
            run.event("note", "something new")
        assert until(lambda: state(url)["version"] != first)
        assert "something new" in ask(url)[2] and len(count) >= 2


def test_redrawing_leaves_the_machine_to_the_run(make, monkeypatch):
    folder = make()
    monkeypatch.setattr(module, "SHARE", 1e-3)  # a drawing of 50 ms is then kept for 50 s
    viewer = module.Viewer(folder)
    first = viewer.view()
    (folder / "result.json").write_text("{}")
    assert viewer.view() is first
    monkeypatch.setattr(viewer, "_due", 0.0)
    assert viewer.view() is not first


def test_it_waits_for_a_run_and_outlives_it(make, tmp_path):
    folder = tmp_path / "run"
    with serving(folder) as url:
        assert state(url)["status"] == "waiting"
        page = ask(url)[2]
        assert "there is no such folder" in page and "<main>" in page and SCRIPT in page
        folder.mkdir()
        assert "is not a run folder" in ask(url)[2]
        folder.rmdir()
        make(finished=False)
        reported = state(url)
        assert reported["status"] == "running" and reported["epoch"].startswith("network, epoch 6")
        (folder / "run.db").write_bytes(b"damaged" * 999)
        page = ask(url)[2]
        assert "cannot be used" in page and str(folder / "run.db") in page and "/tailorvit-" not in page
        for part in ("info.json", "recipe.toml"):
            (folder / part).write_text("{")
        assert "info.json is damaged" in ask(url)[2]
        shutil.rmtree(folder)
        assert state(url)["status"] == "waiting" and "there is no such folder" in ask(url)[2]


def test_our_own_mistakes_become_a_page(make, monkeypatch):
    def trip(facts):
        raise RuntimeError("<b>odd</b>")

    monkeypatch.setattr(module, "page_parts", trip)
    with serving(make()) as url:
        assert "&lt;b&gt;odd&lt;/b&gt;" in ask(url)[2] and state(url)["status"] == "unreadable"


def test_watching_leaves_no_trace(make):
    folder = make()
    before = contents(folder)
    with serving(folder) as url:
        for _ in range(3):
            ask(url)
            state(url)
    assert contents(folder) == before


def test_a_killed_run_in_wal_mode_is_read_without_a_trace(make, tmp_path):
    folder = make()
    link = sqlite3.connect(folder / "run.db", isolation_level=None)
    link.execute("PRAGMA journal_mode=WAL")
    link.execute("INSERT INTO events (time, kind, text, data) VALUES ('now', 'note', 'only in the WAL', '{}')")
    killed = tmp_path / "killed"
    shutil.copytree(folder, killed)  # what a kill leaves: run.db-wal not folded in
    link.close()
    (killed / "run.db-shm").unlink()
    before = contents(killed)
    assert before["run.db-wal"], "the row is nowhere else"
    with serving(killed) as url:
        assert "only in the WAL" in ask(url)[2]
    assert contents(killed) == before


def test_a_run_written_meanwhile_is_read_whole_and_left_clean(tmp_path):
    folder = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), "150", "0.01"], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout.readline() == "begun\n"
        seen, wrong = [], []
        with serving(folder) as url:
            while not seen or seen[-1]["status"] != "finished":
                reported = state(url)
                seen.append(reported)
                page = ask(url)[2]
                wrong += [s for s in ("cannot be used", "malformed", "damaged") if s in page]
                assert len(seen) < 2000
            assert writer.stdout.readline() == "done\n"
            assert writer.wait(10) == 0
    counts = [s["trials"] for s in seen]
    assert wrong == [] and counts == sorted(counts) and len(set(counts)) > 3, "it was followed while it grew"
    assert all(n % 20 == 0 for n in counts), "never half a transaction"
    assert seen[-1]["trials"] == 150 * 20 and seen[-1]["epoch"] == ""
    assert not list(folder.glob("run.db-*")), "the writer could fold its WAL away"
    link = sqlite3.connect(f"file:{folder / 'run.db'}?mode=ro", uri=True)
    assert link.execute("PRAGMA journal_mode").fetchone() == ("delete",)
    link.close()


def test_copies_are_whole_while_the_wal_is_begun_anew(tmp_path):
    folder = tmp_path / "run"
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), "300", "0.002"], stdout=subprocess.PIPE, text=True
    ) as writer:
        writer.stdout.readline()
        copies = 0
        while writer.poll() is None:
            copy = tmp_path / "copy"
            copy.mkdir()
            if copy_database(folder, copy):
                link = sqlite3.connect(copy / "run.db")
                assert link.execute("PRAGMA integrity_check").fetchone() == ("ok",)
                trials, epochs = (link.execute(f"SELECT count(*) FROM {t}").fetchone()[0] for t in ("trials", "epochs"))
                assert trials % 20 == 0 and 0 <= trials // 20 - epochs <= 1, "a state that was there at one moment"
                link.close()
                copies += 1
            shutil.rmtree(copy)
        assert copies > 3


@pytest.mark.parametrize("moment", ["run.db", "run.db-wal"])
def test_a_copy_caught_out_is_taken_again(make, tmp_path, monkeypatch, moment):
    folder, real, taken = make(), shutil.copyfile, []
    link = sqlite3.connect(folder / "run.db", isolation_level=None)
    link.execute("PRAGMA journal_mode=WAL")

    def grow(mark):
        row = "INSERT INTO events (time, kind, text, data) VALUES ('now', 'note', ?, '{}')"
        link.execute("BEGIN")
        link.executemany(row, [(f"{mark} {'x' * 500}",)] * 40)
        link.execute("COMMIT")

    def meddle(source, target):
        real(source, target)
        taken.append(source.name)
        if source.name == moment and taken.count(moment) == 1:  # all of the WAL goes into run.db, then it begins anew
            grow("second")
            assert link.execute("PRAGMA wal_checkpoint(RESTART)").fetchone()[0] == 0
            grow("third")

    grow("first")
    monkeypatch.setattr(shutil, "copyfile", meddle)
    copy = tmp_path / "copy"
    copy.mkdir()
    assert copy_database(folder, copy)
    assert taken.count("run.db") == 2, "the first copy was noticed to be none"
    seen = sqlite3.connect(copy / "run.db")
    assert seen.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    counts = dict(seen.execute("SELECT substr(text, 1, 5), count(*) FROM events WHERE kind='note' GROUP BY 1"))
    assert counts == {"first": 40, "secon": 40, "third": 40}
    seen.close()
    link.close()


def test_a_snapshot_leaves_out_what_a_report_does_not_read(make):
    folder = make()
    (folder / "report.html").write_text("old")
    (folder / ".x.json").write_text("hidden")
    with snapshot(folder) as copy:
        names = {p.name for p in copy.iterdir()}
        assert {"run.db", "result.json", "info.json", "recipe.toml"} <= names
        assert not {"report.html", ".lock", ".x.json", "checkpoints"} & names
    assert not copy.exists()


def test_mistakes_are_sentences(make, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(TailorError, match=f"Cannot listen on 127.0.0.1:{port} .*choose another port"):
            watch(make(), port)
    with pytest.raises(TailorError, match=r"from 0 .any free one. to 65535, not 70000"):
        watch(tmp_path, 70_000)
    (tmp_path / "file").touch()
    with pytest.raises(TailorError, match="is a file, not the folder of a run"):
        watch(tmp_path / "file")


def test_ctrl_c_ends_quietly(make):
    code = "import signal, sys; from pathlib import Path; from tailorvit.report.watch import watch\n"
    code += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # ignored in a shell's background
    code += "watch(Path(sys.argv[1]), 0, lambda url: print(url, flush=True)); print('ended')"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(make())], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        url = process.stdout.readline().strip()
        assert ask(url)[0] == 200
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    assert (process.returncode, out, err) == (0, "ended\n", "")


def test_a_trial_without_accuracy_is_no_best(tmp_path):
    with Run.create(tmp_path / "run", "", {}) as run:
        run.record_trials("search", [{"arch": Arch("vit", depth=1), "score": 3.0}])
    assert module.summary(collect(tmp_path / "run")) == {"status": "running", "best": None, "trials": 1, "epoch": ""}
