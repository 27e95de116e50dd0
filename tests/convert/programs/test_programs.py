import ast
from collections import Counter

import numpy as np
import pytest

from hpcgnn.commands.command import find_command
from hpcgnn.convert.programs.command import _options
from hpcgnn.convert.programs.graph import build_graph
from hpcgnn.convert.programs.holes import find_holes
from hpcgnn.convert.programs.instances import compile_graph, pack_instance
from hpcgnn.convert.programs.options import ProgramOptions
from hpcgnn.convert.programs.sources import SourceFile
from hpcgnn.convert.programs.variables import Uses
from tests.support.program_files import edges_named, graph_at, hole_at

# Tokens:      0   1  2 3 4 5 6 7 8  9 10 11 12    13 14 15 16
STRAIGHT = "def f(a, b):\n    c = a\n    return c + b\n"

GUARDED = """
def f(a, b):
    if a:
        c = a + b
    else:
        c = b + a
    return c, b
"""

NESTED = """
def f(a):
    def g(b):
        return a + b
    c = 1
    return c
"""

GLOBAL = """
limit = 3
class A:
    size = 2
    def f(self, a, b):
        global limit
        limit = a
        return limit, b
"""

BRANCHES = """
def f(a, flag):
    if flag:
        b = a
    else:
        b = flag
    while a:
        a = b
        if flag:
            continue
        b = a
    return a, b
"""

MANY = '''
class Box:
    """A box."""
    def put(self, thing, count=1, *rest, key=None, **more):
        def inner(x):
            nonlocal count
            count += x
            return x, thing
        total = [item * count for item in rest if item]
        squares = {k: v for k, v in more.items()}
        try:
            with open(key) as stream, stream as other:
                text = other.read(count)
        except (OSError, ValueError) as error:
            raise RuntimeError(f"{thing!r} {text}") from error
        else:
            self.check(thing, key=count)
        finally:
            print(total, squares)
        match thing:
            case [first, *others] if first:
                return first, others
            case {"k": value}:
                return value
        for index, each in enumerate(rest):
            if each is None:
                break
            if (found := each.get(index)):
                return found
        del total
        return inner(count) if key else (lambda y: y + count)(index)

    def check(self, thing, key):
        yield thing
        assert key, thing
        é = thing; ü = é
        return ü, é
'''


def test_uses_point_at_the_last_read_and_write() -> None:
    graph, hole, names = graph_at(STRAIGHT, 2)
    assert hole.use.variable.name == "b"
    # b was in the hole: its uses are its declaration and the candidate's later uses.
    reads = edges_named(graph, names, "LastRead")
    writes = edges_named(graph, names, "LastWrite")
    assert reads == {("?a", "a@10"), ("?c", "c@12")}
    assert writes == {
        ("a@10", "a@3"),
        ("c@12", "c@8"),
        ("?a", "a@3"),
        ("?b", "b@5"),
        ("?c", "c@8"),
    }


def test_simple_relations() -> None:
    graph, _, names = graph_at(STRAIGHT, 2)
    assert edges_named(graph, names, "ComputedFrom") == {("c@8", "a@10")}
    assert edges_named(graph, names, "ReturnsTo") == {("Return", "FunctionDef")}
    lexical = edges_named(graph, names, "LastLexicalUse")
    assert {("a@10", "a@3"), ("c@12", "c@8"), ("?b", "b@5"), ("?c", "c@12")} <= lexical
    assert ("HOLE", "b@5") not in lexical
    order = edges_named(graph, names, "NextToken")
    assert ("+@13", "HOLE") in order
    assert len(order) == 14


def test_names_behind_other_letters_are_found_in_a_last_line_without_an_end() -> None:
    source = SourceFile("def f(é, b): return é, b")
    names = [node for node in ast.walk(source.tree) if isinstance(node, ast.Name)]
    assert [source.name_token(name) for name in names] == [9, 11]


def test_edges_are_in_order() -> None:
    graph, _, _ = graph_at(MANY, 3)
    assert graph.edges.tolist() == sorted(graph.edges.tolist())


def test_every_node_but_the_root_has_one_parent() -> None:
    graph, _, _ = graph_at(MANY, 3)
    children = graph.edges[graph.edges[:, 0] == 0][:, 2]
    assert sorted(children.tolist()) == list(range(1, len(graph.labels)))


def test_branches_and_loops_join_what_may_have_come_last() -> None:
    graph, hole, names = graph_at(BRANCHES, 8)
    assert hole.use.variable.name == "b"
    _, uses, _ = hole_at(BRANCHES, 8)
    of = {
        name: [f"{name}@{use.token}" for use in found]
        for variable, found in uses.of_variable.items()
        for name in [variable.name]
    }
    writes = edges_named(graph, names, "LastWrite")
    # After the loop, b was written in a branch of the if or at the end of the body.
    assert {target for node, target in writes if node == "?b"} == {
        of["b"][0],
        of["b"][1],
        of["b"][3],
    }
    loop_read = of["a"][2]
    assert {target for node, target in writes if node == loop_read} == {of["a"][0], of["a"][3]}


def test_guards_know_their_variables() -> None:
    graph, _, names = graph_at(GUARDED, 2)
    guarded = edges_named(graph, names, "GuardedBy")
    negated = edges_named(graph, names, "GuardedByNegation")
    assert {node for node, _ in guarded} == {"a@13", "?a"}
    assert {target for _, target in guarded | negated} == {"Name"}
    assert {node for node, _ in negated} == {"a@22"}


def test_arguments_meet_their_parameters() -> None:
    text = "def f(a, b):\n    def g(x, y):\n        return x, y\n    return g(a, y=b), a\n"
    graph, _, names = graph_at(text, 1)
    formal = edges_named(graph, names, "FormalArgName")
    assert {target for _, target in formal} == {"x@11", "y@13"}


def test_candidates_are_visible_declared_and_drawn() -> None:
    _, _, hole = hole_at(
        "def f(a):\n    def g(b):\n        return a + b\n    c = 1\n    return c\n", 0
    )
    assert {each.name for each in hole.candidates} == {"a", "b"}
    orders = set()
    for seed in range(8):
        source = SourceFile(STRAIGHT)
        options = ProgramOptions(seed=seed)
        found = list(find_holes(source, Uses(source), "file.py", options))
        orders |= {tuple(each.name for each in hole.candidates) for hole in found}
    assert len(orders) > 2


def test_class_names_and_globals_are_no_variables() -> None:
    source = SourceFile(GLOBAL)
    names = {variable.name for variable in Uses(source).of_variable}
    assert names == {"self", "a", "b"}


@pytest.mark.parametrize("granularity", ["function", "definition", "file"])
def test_the_answer_leaves_no_trace(granularity: str) -> None:
    """With any candidate in the hole, the compiled graph is the same except for its label."""
    text = MANY + STRAIGHT + BRANCHES
    options = ProgramOptions(functions_per_file=0, holes_per_function=0)
    source = SourceFile(text)
    holes = list(find_holes(source, Uses(source), "file.py", options))
    assert len(holes) > 40
    for hole in holes[::5]:
        start = hole.use.node.lineno, hole.use.node.col_offset
        made = {}
        for candidate in hole.candidates:
            twin = _replace(text, *start, hole.use.variable.name, candidate.name)
            made[candidate.name] = _compiled(twin, start, options, granularity)
        wanted = made[hole.use.variable.name]
        for name, found in made.items():
            assert found[:-1] == wanted[:-1], (start, name)
            assert found[-1] == [each.name for each in hole.candidates].index(name)


def _replace(text: str, line: int, offset: int, old: str, new: str) -> str:
    lines = text.split("\n")
    raw = lines[line - 1].encode()
    assert raw[offset : offset + len(old.encode())] == old.encode()
    lines[line - 1] = (raw[:offset] + new.encode() + raw[offset + len(old.encode()) :]).decode()
    return "\n".join(lines)


def _compiled(
    text: str, start: tuple[int, int], options: ProgramOptions, granularity: str
) -> tuple[object, ...]:
    source = SourceFile(text)
    uses = Uses(source)
    holes = find_holes(source, uses, "file.py", options)
    hole = next(h for h in holes if (h.use.node.lineno, h.use.node.col_offset) == start)
    root = {"function": hole.function, "definition": hole.unit, "file": source.tree}[granularity]
    graph = build_graph(source, uses, root, hole.use, hole.candidates)
    batch = pack_instance(
        graph,
        flip=hole.flip,
        label=0,
        line=0,
        num_uses=hole.num_uses,
        distances=hole.distances,
        options=options,
    )
    assert batch is not None
    arrays = batch.graphs, batch.subtokens, batch.edges, batch.edge_types, batch.candidates
    return (*(array.tobytes() for array in arrays), hole.label)


@pytest.mark.parametrize(("functions", "holes"), [(0, 0), (2, 1), (0, 2), (1, 0)])
def test_limits_count_what_has_holes(functions: int, holes: int) -> None:
    """Functions and uses without a choice are skipped, wherever they come in the drawn order."""
    plain = "".join(f"def g{n}(a):\n    return a\n" for n in range(9))
    text = plain + "".join(f"def f{n}(a, b):\n    c = a + b\n    return c, a\n" for n in range(5))
    source = SourceFile(text)
    options = ProgramOptions(functions_per_file=functions, holes_per_function=holes)
    found = list(find_holes(source, Uses(source), "file.py", options))
    by_function = Counter(hole.function for hole in found)
    assert len(by_function) == (functions or 5)
    assert set(by_function.values()) == {min(holes or 4, 4)}


def test_compilation_keeps_what_candidates_hear_of() -> None:
    path = np.array([[1, n, n + 1] for n in range(29)], np.int32)
    compiled = compile_graph(30, path, np.array([10], np.int32), 8, flip=False)
    assert sorted(compiled.nodes.tolist()) == list(range(2, 19))
    assert compiled.bandwidth == 1
    # Every edge between remaining nodes remains, with its type and direction.
    back = {(k, int(compiled.nodes[s]), int(compiled.nodes[t])) for k, s, t in compiled.edges}
    assert back == {(1, n, n + 1) for n in range(2, 18)}


def test_compiled_edges_are_in_order() -> None:
    rng = np.random.default_rng(4)
    edges = np.column_stack([rng.integers(3, size=60), rng.integers(8, size=(60, 2))])
    compiled = compile_graph(8, edges.astype(np.int32), np.zeros(1, np.int32), 8, flip=False)
    assert compiled.edges.tolist() == sorted(compiled.edges.tolist())


def test_order_reduces_the_bandwidth_of_a_shuffled_band() -> None:
    rng = np.random.default_rng(3)
    place = rng.permutation(200)
    rows = [[0, place[n], place[n + d]] for n in range(195) for d in (1, 3)]
    compiled = compile_graph(
        200, np.array(rows, np.int32), place[:1].astype(np.int32), 200, flip=False
    )
    assert compiled.bandwidth < 10
    other = compile_graph(200, np.array(rows, np.int32), place[:1].astype(np.int32), 200, flip=True)
    assert np.array_equal(other.nodes, compiled.nodes[::-1])
    assert other.bandwidth == compiled.bandwidth


def test_odd_sources() -> None:
    for text in (
        "",
        "x = 1\n",
        "def f(): pass\n",
        "async def f(a):\n    return [a async for a in a]\n",
    ):
        source = SourceFile(text)
        assert list(find_holes(source, Uses(source), "f.py", ProgramOptions())) is not None
    with pytest.raises((SyntaxError, ValueError)):
        SourceFile("def f(:\n")
    assert isinstance(SourceFile("").tree, ast.Module)
    # The first token belongs to no part of the tree.
    decorated = SourceFile("@a\ndef f(): pass\n")
    assert decorated.spans[decorated.tree] == (0, len(decorated.tokens))


def test_zero_means_all_and_less_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    def options(*words: str) -> ProgramOptions:
        return _options(find_command("convert programs").parse(["folder", "-o", "out.h5", *words]))

    every = options("--functions-per-file", "0", "--holes-per-function", "0")
    assert (every.functions_per_file, every.holes_per_function) == (0, 0)
    for flag, value, least in (("functions-per-file", -1, 0), ("max-candidates", 1, 2)):
        with pytest.raises(SystemExit):
            options(f"--{flag}", str(value))
        assert f"argument --{flag}: {value}: at least {least};" in capsys.readouterr().err
