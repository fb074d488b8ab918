"""The database file of a run: schema, connection, one transaction per write."""

from __future__ import annotations

import contextlib
import shlex
import sqlite3
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tailorvit.errors import TailorError

VERSION = 1
# Every table has a unique key, so that repeated work updates its row; id keeps the order of insertion.
_SCHEMA = (
    "CREATE TABLE stages (id INTEGER PRIMARY KEY, stage TEXT UNIQUE NOT NULL, result TEXT, time TEXT NOT NULL)",
    "CREATE TABLE seconds (id INTEGER PRIMARY KEY, stage TEXT UNIQUE NOT NULL, seconds REAL NOT NULL)",
    "CREATE TABLE events (id INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, text TEXT NOT NULL,"
    " data TEXT NOT NULL)",
    "CREATE TABLE trials (id INTEGER PRIMARY KEY, stage TEXT NOT NULL, arch TEXT NOT NULL, accuracy REAL,"
    " params INTEGER, macs INTEGER, source TEXT, generation INTEGER, parents TEXT NOT NULL, seconds REAL,"
    " costs TEXT NOT NULL, extra TEXT NOT NULL, UNIQUE (stage, arch))",
    "CREATE TABLE spaces (id INTEGER PRIMARY KEY, t INTEGER UNIQUE NOT NULL, space TEXT NOT NULL, facts TEXT NOT NULL)",
    "CREATE TABLE slopes (id INTEGER PRIMARY KEY, t INTEGER NOT NULL, dim TEXT NOT NULL, facts TEXT NOT NULL,"
    " UNIQUE (t, dim))",
    "CREATE TABLE decisions (id INTEGER PRIMARY KEY, t INTEGER UNIQUE NOT NULL, facts TEXT NOT NULL)",
    "CREATE TABLE epochs (id INTEGER PRIMARY KEY, stage TEXT NOT NULL, epoch INTEGER NOT NULL, facts TEXT NOT NULL,"
    " UNIQUE (stage, epoch))",
    "CREATE TABLE measured (id INTEGER PRIMARY KEY, metric TEXT NOT NULL, arch TEXT NOT NULL, value REAL NOT NULL,"
    " UNIQUE (metric, arch))",
)


class Database:
    """An SQLite file in WAL mode. A read-only one connects at the first query, so a damaged file fails there."""

    def __init__(self, path: Path, readonly: bool = False) -> None:
        self.path, self.readonly = path, readonly
        self._mutex = threading.RLock()
        self._link: sqlite3.Connection | None = None
        if not readonly:
            with self._mutex:
                self._connect()

    def _broken(self, error: Exception) -> TailorError:
        go_on = f"tailorvit resume {shlex.quote(str(self.path.parent))}"
        after = "" if self.readonly else f" Once that is mended, go on with: {go_on}"
        return TailorError(f"The database '{self.path}' cannot be used ({error}).{after}")

    def _connect(self) -> sqlite3.Connection:
        if self._link is None:
            try:
                self._link = self._open_reading() if self.readonly else self._open_writing()
            except (sqlite3.Error, OSError) as error:
                raise self._broken(error) from error
        return self._link

    def _open_writing(self) -> sqlite3.Connection:
        link = sqlite3.connect(self.path, timeout=30, isolation_level=None, check_same_thread=False)
        try:
            self._check_version(link)
            check = link.execute("PRAGMA quick_check(1)").fetchone()[0]
            if check != "ok":
                raise sqlite3.DatabaseError(check)
            link.execute("PRAGMA journal_mode=WAL")
            link.execute("PRAGMA synchronous=NORMAL")
            if link.execute("PRAGMA user_version").fetchone()[0] == 0:
                link.execute("BEGIN IMMEDIATE")
                for statement in _SCHEMA:
                    link.execute(statement)
                link.execute(f"PRAGMA user_version={VERSION}")
                link.execute("COMMIT")
        except BaseException:
            link.close()
            raise
        return link

    def _open_reading(self) -> sqlite3.Connection:
        if not self.path.exists():
            raise FileNotFoundError("no such file")
        # Second try: in a read-only folder SQLite can read a WAL database only as immutable.
        for mode in ("mode=ro", "immutable=1"):
            link = sqlite3.connect(
                f"{self.path.resolve().as_uri()}?{mode}",
                uri=True,
                timeout=30,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                self._check_version(link)
                return link
            except sqlite3.OperationalError:
                link.close()
                if mode == "immutable=1":
                    raise
            except BaseException:
                link.close()
                raise
        raise AssertionError("not reached")

    def _check_version(self, link: sqlite3.Connection) -> None:
        strange = "SELECT type, name FROM sqlite_master WHERE type NOT IN ('table', 'index') LIMIT 1"
        for kind, name in link.execute(strange):  # a view could run for ever, a trigger change what is written
            raise sqlite3.DatabaseError(f"it holds the {kind} '{name}', which no run writes")
        version = int(link.execute("PRAGMA user_version").fetchone()[0])
        if version > VERSION:
            raise TailorError(
                f"The database '{self.path}' comes from a newer TailorViT (format {version}; this one reads {VERSION})."
            )

    def write(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Run one statement for every row in one transaction."""
        if self.readonly:
            raise TailorError(f"The run in '{self.path.parent}' is open for reading only.")
        with self._mutex:
            link = self._connect()
            try:
                link.execute("BEGIN IMMEDIATE")
                link.executemany(statement, rows)
                link.execute("COMMIT")
            except BaseException as error:
                if link.in_transaction:
                    link.execute("ROLLBACK")
                if isinstance(error, sqlite3.OperationalError | sqlite3.DatabaseError):
                    raise self._broken(error) from error
                raise

    def read(self, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        with self._mutex:
            link = self._connect()
            try:
                return link.execute(statement, values).fetchall()
            except sqlite3.Error as error:
                raise self._broken(error) from error

    def close(self) -> None:
        """Close. The last writer leaves a single file that can be read anywhere, also from read-only media."""
        with self._mutex:
            if self._link is None:
                return
            if not self.readonly:
                with contextlib.suppress(
                    sqlite3.Error
                ):  # another process reads just now: WAL mode stays, which is complete too
                    self._link.execute("PRAGMA journal_mode=DELETE")
            self._link.close()
            self._link = None
