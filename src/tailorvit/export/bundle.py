"""One standalone Python file out of several modules of this package: what is used, in order, with nothing to import.

A network that needs tailorvit installed is not taken away. The bundle is read from the modules themselves, so there is
one source; definitions that nothing reaches stay behind.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

HOUSE = __name__.split(".", maxsplit=1)[0]


@dataclass(frozen=True)
class Module:
    """A parsed module: its statements by the names they define, and where its imported names come from."""

    name: str
    lines: list[str]
    body: list[ast.stmt]
    defined: dict[str, ast.stmt] = field(default_factory=dict)
    outside: dict[str, str] = field(default_factory=dict)  # name to the import statement that brings it
    inside: dict[str, tuple[str, str]] = field(default_factory=dict)  # name to (module of ours, name there)
    hints: set[str] = field(default_factory=set)  # names imported for annotations only


def _read(name: str) -> Module:
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(name)
    text = Path(spec.origin).read_text(encoding="utf-8")
    module = Module(name, text.splitlines(), ast.parse(text).body)
    for node in module.body:
        hint = isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for each in node.body if isinstance(node, ast.If) else [node]:
            if isinstance(each, ast.Import | ast.ImportFrom):
                _note_import(module, each, hint)
        for defined in _names(node):
            module.defined[defined] = node
    return module


def _note_import(module: Module, node: ast.Import | ast.ImportFrom, hint: bool) -> None:
    for alias in node.names:
        name = alias.asname or alias.name.split(".")[0]
        if isinstance(node, ast.Import):
            if alias.name.split(".")[0] == HOUSE:
                raise ValueError(f"{module.name} must import names from {alias.name}, to be bundled")
            module.outside[name] = f"import {alias.name}" + (f" as {alias.asname}" if alias.asname else "")
        elif (node.module or "").split(".")[0] == HOUSE:
            if alias.asname:
                raise ValueError(f"{module.name} must import {alias.name} under its own name, to be bundled")
            module.inside[name] = (str(node.module), alias.name)
        elif node.module != "__future__":
            end = f" as {alias.asname}" if alias.asname else ""
            module.outside[name] = f"from {node.module} import {alias.name}{end}"
        if hint:
            module.hints.add(name)


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]


def _used(node: ast.stmt) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id
        elif isinstance(part, ast.ImportFrom) and (part.module or "").split(".")[0] == HOUSE:
            raise ValueError(f"line {part.lineno}: imports inside functions cannot be bundled")


@dataclass
class _Collection:
    modules: dict[str, Module] = field(default_factory=dict)  # dependencies first
    kept: dict[str, set[int]] = field(default_factory=dict)  # module to the statements that go in
    imports: set[str] = field(default_factory=set)
    hints: set[str] = field(default_factory=set)

    def module(self, name: str) -> Module:
        if name not in self.modules:
            found = _read(name)
            for other, _ in found.inside.values():
                self.module(other)
            self.modules[name], self.kept[name] = found, set()
        return self.modules[name]

    def take(self, name: str, node: ast.stmt) -> None:
        module = self.module(name)
        if node.lineno in self.kept[name]:
            return
        self.kept[name].add(node.lineno)
        for used in _used(node):
            if used in module.defined:
                self.take(name, module.defined[used])
            elif used in module.inside:
                where, there = module.inside[used]
                self.take(where, self.module(where).defined[there])
            elif used in module.outside:
                (self.hints if used in module.hints else self.imports).add(module.outside[used])


def bundle(heading: str, families: Iterable[tuple[str, str, str]], glue: str) -> str:
    """The source of ``glue`` and of all it reaches, with PLAIN cut down to ``families`` (name, module, class)."""
    families = list(families)
    collection, table = _Collection(), f"{HOUSE}.plain"
    collection.modules[table] = Module(table, [], [])  # stands in for the full table
    collection.kept[table] = set()
    collection.modules[table].defined["PLAIN"] = ast.parse("PLAIN = {}").body[0]
    for _, module, kind in families:
        collection.take(module, collection.module(module).defined[kind])
    whole = collection.module(glue)
    for node in whole.body:
        trivial = isinstance(node, ast.Import | ast.ImportFrom | ast.If)
        if not trivial and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            collection.take(glue, node)
    entries = ", ".join(f'"{name}": {kind}' for name, _, kind in families)
    parts = [
        f"# -- families {'-' * 40}\n\n\nPLAIN = {{{entries}}}" if name == table else _text(m, collection.kept[name])
        for name, m in sorted(collection.modules.items(), key=lambda item: _rank(item[0], table, glue, collection))
    ]
    _no_clashes(collection)
    only_hints = collection.hints - collection.imports
    if only_hints:
        collection.imports.add("from typing import TYPE_CHECKING")
    hints = ["", "if TYPE_CHECKING:", *(f"    {line}" for line in _grouped(only_hints))] if only_hints else []
    head = [f'"""{heading}"""', "", "from __future__ import annotations", "", *_grouped(collection.imports), *hints]
    return "\n".join(head) + "\n\n" + "\n\n\n".join(p for p in parts if p) + "\n"


def _grouped(imports: set[str]) -> list[str]:
    """Import lines in order, one line a module."""
    names: dict[str, list[str]] = {}
    for line in sorted(imports):
        start, joint, name = line.partition(" import ")
        names.setdefault(start + joint, []).extend([name] if joint else [])
    lines = [start + ", ".join(members) for start, members in names.items()]
    return sorted(lines, key=lambda line: (line.startswith("from"), line))


def _rank(name: str, table: str, glue: str, collection: _Collection) -> tuple[int, int]:
    """Dependencies, then the table of families, which names their classes, then the glue, which reads it."""
    return {table: 1, glue: 2}.get(name, 0), list(collection.modules).index(name)


def _text(module: Module, kept: set[int]) -> str:
    """The kept statements as they stand, with the comments right above them."""
    pieces = []
    for node in module.body:
        if node.lineno not in kept:
            continue
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef | ast.ClassDef) else []
        start = min([node.lineno, *(d.lineno for d in decorators)]) - 1
        while start and module.lines[start - 1].startswith("#") and "----" not in module.lines[start - 1]:
            start -= 1
        pieces.append("\n".join(module.lines[start : node.end_lineno]))
    if not pieces:
        return ""
    title = f"# -- {module.name} "
    return f"{title}{'-' * (60 - len(title))}\n\n\n" + "\n\n\n".join(pieces)


def _no_clashes(collection: _Collection) -> None:
    """Refuse one name for two things: the later would silently replace the earlier."""
    seen: dict[str, str] = {}
    for name, module in collection.modules.items():
        for defined, node in module.defined.items():
            if node.lineno in collection.kept[name] and seen.setdefault(defined, name) != name:
                raise ValueError(f"{seen[defined]} and {name} both define '{defined}'; rename one, to be bundled")
