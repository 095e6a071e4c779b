"""A state machine in which several libraries take turns on one repository.

After every turn all of them read the repository and must see the same: branches, tags, histories,
attributes and values, which must also match a model of plain dictionaries. Each of them expires
and collects on a copy of its own, and all must leave the same.
"""

from __future__ import annotations

import copy
import shutil
from itertools import count
from pathlib import Path
from typing import Any

from hypothesis import note
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from support.actors import Actor

import airflow_provider_icechunk.api as icechunk

ARRAYS = ["a", "g/a", "g/h/b"]
GROUPS = ["g", "g/h", "z"]
NODES = [*ARRAYS, *GROUPS]
BRANCHES = ["main", "dev"]
SIDES = st.integers(1, 4)
WIDTH = 200

Tree = dict[str, list[Any]]
"""Attributes and values by path."""

edits = st.lists(
    st.one_of(
        st.tuples(st.just("array"), st.sampled_from(ARRAYS), SIDES),
        st.tuples(st.just("group"), st.sampled_from(GROUPS), st.just({"made": 1})),
        st.tuples(
            st.just("write"), st.sampled_from(ARRAYS), st.integers(0, 2), SIDES, st.integers(0, 99)
        ),
        st.tuples(st.just("resize"), st.sampled_from(ARRAYS), SIDES),
        st.tuples(
            st.just("attributes"),
            st.sampled_from(["", *NODES]),
            st.dictionaries(st.sampled_from("xyü"), st.integers(-5, 5), max_size=2),
        ),
        st.tuples(st.just("delete"), st.sampled_from(NODES)),
    ),
    min_size=1,
    max_size=4,
)


def possible(tree: Tree, edit: list[Any]) -> bool:
    """Whether an edit makes sense for this tree."""
    name, path = edit[0], f"/{edit[1]}"
    node = tree.get(path)
    match name:
        case "array" | "group":
            above = [f"/{'/'.join(path.split('/')[1:n])}" for n in range(2, path.count("/") + 1)]
            return node is None and all(tree.get(one, [{}, None])[1] is None for one in above)
        case "write" | "resize":
            return node is not None and node[1] is not None
    return node is not None


def apply(tree: Tree, edit: list[Any]) -> None:
    """Change the model as an edit changes a repository."""
    name, path = edit[0], f"/{edit[1]}"
    match name:
        case "array" | "group":
            parts = path.split("/")[1:-1]
            for depth in range(1, len(parts) + 1):
                tree.setdefault("/" + "/".join(parts[:depth]), [{}, None])
            values = [[-1] * WIDTH for _ in range(edit[2])] if name == "array" else None
            tree[path] = [edit[2] if name == "group" else {}, values]
        case "write":
            rows = tree[path][1]
            for row in range(edit[2], min(edit[3], len(rows))):
                rows[row] = [edit[4]] * WIDTH
        case "resize":
            rows = tree[path][1][: edit[2]]
            tree[path][1] = rows + [[-1] * WIDTH for _ in range(edit[2] - len(rows))]
        case "attributes":
            tree[path][0] = dict(edit[2])
        case "delete":
            for one in [one for one in tree if one == path or one.startswith(path + "/")]:
                del tree[one]


class Turns(RuleBasedStateMachine):
    """One repository; the actor whose turn it is changes it, and all of them read it."""

    generation: str
    actors: dict[str, Actor]
    root: Path
    numbers = count()

    def __init__(self) -> None:
        super().__init__()
        self.folder = self.root / str(next(self.numbers))
        self.trees: dict[str, Tree] = {}
        self.tags: dict[str, Tree] = {}
        self.amendable: set[str] = set()
        """Branches whose newest commit can be amended by any session."""

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        storage = icechunk.local_filesystem_storage(self.folder)
        icechunk.Repository.create(storage, spec_version=self.generation)
        self.trees["main"] = {"/": [{}, None]}
        first = [["group", "", {}], ["array", "a", 3], ["array", "g/a", 2], ["write", "a", 0, 2, 7]]
        actor = self.draw_actor(data)
        actor(self.folder, "change", branch="main", edits=first, message="start", how="commit")
        for edit in first[1:]:
            apply(self.trees["main"], edit)
        self.agree()

    def draw_actor(self, data: st.DataObject) -> Actor:
        name = data.draw(st.sampled_from(sorted(self.actors)))
        note(f"{name} acts")
        return self.actors[name]

    def draw_branch(self, data: st.DataObject) -> str:
        return data.draw(st.sampled_from(sorted(self.trees)))

    def sensible(self, tree: Tree, drawn: list[Any]) -> tuple[list[Any], Tree]:
        """Those edits that make sense one after another, and the resulting tree."""
        after, kept = copy.deepcopy(tree), []
        for edit in drawn:
            if possible(after, edit):
                apply(after, edit)
                kept.append(list(edit))
        return kept, after

    @rule(data=st.data(), drawn=edits, amends=st.booleans())
    def change(self, data: st.DataObject, drawn: list[Any], amends: bool) -> None:
        branch = self.draw_branch(data)
        kept, after = self.sensible(self.trees[branch], drawn)
        # Something always changes: an empty commit is refused.
        attributes = {**after["/"][0], "turn": next(self.numbers)}
        kept.append(["attributes", "", attributes])
        after["/"][0] = attributes
        amends = amends and self.generation == "2" and branch in self.amendable
        how = "amend" if amends else "commit"
        self.act(data, "change", branch=branch, edits=kept, message="ch", how=how)
        self.trees[branch] = after
        self.amendable.add(branch)
        self.agree()

    @rule(data=st.data(), one=st.integers(0, 1), value=st.integers(0, 99))
    def race(self, data: st.DataObject, one: int, value: int) -> None:
        branch = self.draw_branch(data)
        tree = self.trees[branch]
        if tree.get("/a", [{}, None])[1] is None:
            return
        theirs = ["write", "a", 0, 1 + one, value]
        ours = ["write", "a", one, 2, value + 100]
        number = next(self.numbers)
        root = ["attributes", "", {**tree["/"][0], "turn": number}]
        self.act(data, "race", branch=branch, ours=[ours, root], theirs=[theirs])
        for edit in (theirs, ours, root):
            apply(tree, edit)
        self.amendable.add(branch)
        self.agree()

    @rule(
        data=st.data(),
        old=st.sampled_from(NODES),
        new=st.sampled_from([*NODES, "m", "n"]),
        value=st.none() | st.integers(0, 99),
    )
    def move(self, data: st.DataObject, old: str, new: str, value: int | None) -> None:
        branch = self.draw_branch(data)
        tree, old, new = self.trees[branch], f"/{old}", f"/{new}"
        above = new.rsplit("/", 1)[0] or "/"
        if old not in tree or new in tree or (new + "/").startswith(old + "/"):
            return
        if tree.get(above, [None, 0])[1] is not None:
            return
        moves = [[old, new]]
        if value is None:
            self.rearrange(data, "rearrange", branch=branch, moves=moves, message="m", how="commit")
        else:
            # Meanwhile another session writes to the node that is moved.
            attributes = {**tree[old][0], "value": value}
            meanwhile = [["attributes", old[1:], attributes]]
            if tree[old][1] is not None:
                meanwhile.append(["write", old[1:], 0, 1, value])
            self.rearrange(data, "race moves", branch=branch, moves=moves, theirs=meanwhile)
            for edit in meanwhile:
                apply(tree, edit)
        for path in [one for one in tree if one == old or one.startswith(old + "/")]:
            tree[new + path.removeprefix(old)] = tree.pop(path)
        # A commit that moved nodes is amended by moves only.
        self.amendable.discard(branch)
        self.agree()

    @rule(data=st.data(), kind=st.sampled_from(["tag", "branch"]))
    def name(self, data: st.DataObject, kind: str) -> None:
        branch = self.draw_branch(data)
        name = f"{kind[0]}{next(self.numbers)}" if kind == "tag" else "dev"
        if name in self.trees:
            return
        self.act(data, "name", name=name, kind=kind, branch=branch)
        named = self.tags if kind == "tag" else self.trees
        named[name] = copy.deepcopy(self.trees[branch])
        self.amendable.clear()
        self.agree()

    @rule(data=st.data())
    def forget(self, data: st.DataObject) -> None:
        names = [
            *(("tag", name) for name in self.tags),
            *([("branch", "dev")] * ("dev" in self.trees)),
        ]
        if not names:
            return
        kind, name = data.draw(st.sampled_from(names))
        self.act(data, "forget", name=name, kind=kind)
        del (self.tags if kind == "tag" else self.trees)[name]
        self.agree()

    @rule(data=st.data(), number=st.integers(0, 4))
    def expire(self, data: st.DataObject, number: int) -> None:
        self.maintain(data, "expire", number=number)

    @rule(data=st.data())
    def collect(self, data: st.DataObject) -> None:
        self.maintain(data, "collect")

    def act(self, data: st.DataObject, action: str, **arguments: Any) -> Any:
        note(f"{action} {arguments}")
        return self.draw_actor(data)(self.folder, action, **arguments)

    def rearrange(self, data: st.DataObject, action: str, **arguments: Any) -> None:
        """Only ours moves nodes in generation `1`; all read, write and collect what was moved."""
        if self.generation == "2":
            self.act(data, action, **arguments)
        else:
            note(f"{action} {arguments}")
            self.actors["ours"](self.folder, action, **arguments)

    def maintain(self, data: st.DataObject, action: str, **arguments: Any) -> None:
        """Let every actor do it on a copy; all results must be the same, and one is kept."""
        chosen = data.draw(st.sampled_from(sorted(self.actors)))
        note(f"{action} {arguments}, {chosen} stays")
        results = {}
        for name, actor in self.actors.items():
            place = self.folder.with_name(f"{self.folder.name}-{name}")
            shutil.copytree(self.folder, place)
            answer = actor(place, action, **arguments)
            results[name] = (answer, self.actors["ours"](place, "view"), self.files(place))
        for name, result in results.items():
            assert result == results["ours"], f"{name} did something else"
        for name in self.actors:
            place = self.folder.with_name(f"{self.folder.name}-{name}")
            if name == chosen:
                shutil.rmtree(self.folder)
                place.rename(self.folder)
            else:
                shutil.rmtree(place)
        self.amendable.clear()
        self.agree()

    def files(self, place: Path) -> list[str]:
        folders = ("snapshots", "transactions", "manifests", "chunks")
        return sorted(f"{one}/{file.name}" for one in folders for file in place.glob(f"{one}/*"))

    def agree(self) -> None:
        """All actors see the same, and it matches the model."""
        views = {name: actor(self.folder, "view") for name, actor in self.actors.items()}
        for name, view in views.items():
            assert view == views["ours"], f"{name} sees something else"
        seen = views["ours"]
        assert seen["branches"].keys() == self.trees.keys()
        assert seen["tags"].keys() == self.tags.keys()
        for named, trees in (("branches", self.trees), ("tags", self.tags)):
            for name, tree in trees.items():
                assert seen["trees"][seen[named][name]] == tree, f"{name} has other contents"


def machine(generation: str, actors: dict[str, Actor], root: Path) -> type[Turns]:
    """The machine for some actors in a folder."""
    return type("ThisMachine", (Turns,), {"generation": generation, "actors": actors, "root": root})
