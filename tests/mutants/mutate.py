"""Small changes of a Python source, each of which a test of its rules should notice.

A change swaps one operator, one constant, one condition or one statement. Left alone are annotations and types,
docstrings, decorators, the options of a class, `if TYPE_CHECKING`, and words for people: texts with a space, parts of
f-strings, and the texts of an error that is raised.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

COMPARED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
COMPUTED: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.BitXor: ast.BitAnd,
}
CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}
NOT_RULES = {"annotation", "returns", "decorator_list", "keywords of a class", "type_params"}
WIDEST = 110
"""Characters of a change that are shown."""


@dataclass(frozen=True)
class Mutant:
    """One change: where it is, what it does, and which code it needs."""

    module: str
    function: str
    """The qualified name of the function it is in; empty for what runs at import."""
    line: int
    last_line: int
    change: str
    number: int
    """Which of the changes of the module."""

    @property
    def name(self) -> str:
        """The same after lines have moved."""
        return f"{self.module} {self.function or '(import)'}: {self.change}"


@dataclass(frozen=True)
class Site:
    """A node that can be changed, and where it hangs."""

    parent: ast.AST
    field: str
    index: int | None
    statement: ast.stmt
    function: str

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


def mutants(module: str, source: str) -> list[Mutant]:
    """Every change of a module, in the order of its nodes; each has a name of its own."""
    found: list[Mutant] = []
    times: Counter[tuple[str, str]] = Counter()
    for number, (site, node, other) in enumerate(_changes(ast.parse(source))):
        change = _shown(site, node, other)
        times[site.function, change] += 1
        if (nth := times[site.function, change]) > 1:
            change += f" (no. {nth})"
        found.append(Mutant(module, site.function, *_lines(node, site.statement), change, number))
    return found


def compiled(source: str, path: str, number: int) -> CodeType:
    """The code of a module with one of its changes."""
    tree = ast.parse(source)
    for at, (site, node, other) in enumerate(_changes(tree)):
        if at == number:
            site.put(ast.copy_location(other, node))
            break
    else:
        raise LookupError(f"{path} has no change {number}")
    return compile(ast.fix_missing_locations(tree), path, "exec")


def _changes(tree: ast.Module) -> Iterator[tuple[Site, ast.AST, ast.AST]]:
    for site, node in list(_sites(tree, "", tree.body[0])):
        for other in _others(node, site):
            yield site, node, other


def _sites(parent: ast.AST, function: str, statement: ast.stmt) -> Iterator[tuple[Site, ast.AST]]:
    """What may be changed below a node, with the function whose code holds it."""
    prefix = function
    if isinstance(parent, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        prefix = f"{function}.{parent.name}" if function else parent.name
    for field, value in ast.iter_fields(parent):
        if field in NOT_RULES or (isinstance(parent, ast.ClassDef) and field == "keywords"):
            continue
        inside = prefix if field == "body" else function
        for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(node, ast.AST) or _left_alone(node):
                continue
            around = node if isinstance(node, ast.stmt) else statement
            yield Site(parent, field, index, around, inside), node
            yield from _sites(node, inside, around)


def _left_alone(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom() | ast.Global() | ast.Nonlocal():
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("__"):
            return True
        case ast.Subscript(value=ast.Name(id="Literal")) | ast.keyword(arg="strict" | "usedforsecurity"):
            return True
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))) | ast.Call(func=ast.Name(id="TypeVar")):
            return True
    return False


def _others(node: ast.AST, site: Site) -> Iterator[ast.AST]:
    match node:
        case ast.Compare(left=left, ops=[op, *ops], comparators=values) if type(op) in COMPARED:
            yield ast.Compare(left, [COMPARED[type(op)](), *ops], values)
        case ast.BoolOp(op=op, values=values):
            yield ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values)
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield operand
        case ast.BinOp(left=left, op=op, right=right) if type(op) in COMPUTED and not _is_type(node, site):
            yield ast.BinOp(left, COMPUTED[type(op)](), right)
        case ast.AugAssign(target=target, op=op, value=value) if type(op) in COMPUTED:
            yield ast.AugAssign(target, COMPUTED[type(op)](), value)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            yield ast.IfExp(test, orelse, body)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=keywords) if name in CALLED:
            yield ast.Call(ast.Name(CALLED[name], ast.Load()), args, keywords)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)) | ast.Constant(value=float(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=str(value)) if not _for_people(value, site):
            yield ast.Constant(f"XX{value}")
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield ast.Return(ast.Constant(None))
        case ast.If(test=test, body=body, orelse=orelse) if not isinstance(test, ast.Compare | ast.UnaryOp):
            yield ast.If(ast.UnaryOp(ast.Not(), test), body, orelse)
        case ast.Raise() | ast.Expr(value=ast.Call() | ast.Await()):
            yield ast.Pass()
        case ast.Break():
            yield ast.Continue()
        case ast.Continue():
            yield ast.Break()


def _is_type(node: ast.BinOp, site: Site) -> bool:
    """Whether an `A | B` joins types: at import, or in `isinstance`."""
    joins = isinstance(node.op, ast.BitOr)
    of_types = not site.function or (
        isinstance(site.parent, ast.Call) and "isinstance" in ast.unparse(site.parent.func)
    )
    return joins and (of_types or isinstance(site.parent, ast.BinOp))


def _for_people(text: str, site: Site) -> bool:
    return " " in text or isinstance(site.parent, ast.JoinedStr) or isinstance(site.statement, ast.Raise)


def _lines(node: ast.AST, statement: ast.stmt) -> tuple[int, int]:
    """The lines whose execution means that the node may have been evaluated."""
    if isinstance(
        statement, ast.If | ast.While | ast.For | ast.With | ast.Try | ast.Match | ast.FunctionDef | ast.ClassDef
    ):
        part = statement if node is statement else node
        first = getattr(part, "lineno", statement.lineno)
        return (first, first) if part is statement else (min(statement.lineno, first), _end(part, first))
    return statement.lineno, statement.end_lineno or statement.lineno


def _end(node: ast.AST, otherwise: int) -> int:
    return getattr(node, "end_lineno", None) or otherwise


def _shown(site: Site, node: ast.AST, other: ast.AST) -> str:
    """Before and after; a constant says little, so it is shown where it stands if there is room."""
    before, after = _text(node), _text(other)
    if isinstance(node, ast.Constant):
        around = _text(site.parent)
        if len(around) <= WIDEST:
            site.put(other)
            before, after = around, _text(site.parent)
            site.put(node)
    return f"{_cut(before)} -> {_cut(after)}"


def _text(node: ast.AST) -> str:
    """The source of a node on one line; of a compound statement, without its body."""
    bare = ast.If(node.test, [ast.Pass()], []) if isinstance(node, ast.If) else node
    return " ".join(ast.unparse(bare).split())


def _cut(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"
