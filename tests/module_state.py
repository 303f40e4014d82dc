"""A process of its own for tests of what is loaded, and of what modules, classes and functions keep between calls.

`module_state.py loaded` prints the modules of thalweg after a few calls on a CPU, `module_state.py changed [STATEMENT]`
the names of what these calls, and the statement, have changed.
"""

import importlib
import pkgutil
import sys
from collections import deque
from contextlib import suppress
from types import FunctionType, MappingProxyType, ModuleType
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch

import thalweg as tw

MAPPINGS = dict | MappingProxyType | WeakKeyDictionary | WeakValueDictionary


def calls() -> None:
    x = torch.randn(8, 2)
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))
    task, data = tw.regression(), [(x, x[:, :1])]
    a, b = (tw.fit(net, task, data, epochs=1, lr=lr) for lr in (0.1, 0.2))
    curve = tw.connect(net, tw.Bezier(a, b), task, data, epochs=1, lr=0.1)
    tw.scan(net, curve, task, data, points=3, bn_batches=data)
    walk = tw.walk(net, task, data, tw.FGE(cycle=tw.Iterations(2), lr_max=0.1, lr_min=0.01), epochs=4)
    tw.Ensemble(net, walk.members).predict(task, data)
    tw.update_bn(net, tw.average(walk.members), data)


def state(value, depth=2):
    """What would be different if something were kept in it."""
    if depth == 0:
        return id(value)
    if isinstance(value, MAPPINGS):
        return [(repr(key), state(own, depth - 1)) for key, own in [*value.items()]]
    if isinstance(value, list | tuple | deque):
        return [state(own, depth - 1) for own in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if isinstance(value, FunctionType):
        return [state(part or ()) for part in (vars(value), value.__defaults__, value.__kwdefaults__)]
    if hasattr(value, "cache_info"):
        return value.cache_info().currsize
    return repr(value) if hasattr(value, "__next__") else id(value)


def snapshot():
    found = {}
    for home, module in sorted(sys.modules.items()):
        if home.split(".")[0] != "thalweg":
            continue
        for name, value in [*vars(module).items()]:
            if isinstance(value, ModuleType) or name.startswith("__") or getattr(value, "__module__", home) != home:
                continue
            found[f"{home}: {name}"] = state(value)
            if isinstance(value, type):  # except for what copyreg adds
                own = {key: state(one) for key, one in vars(value).items() if not key.startswith("__")}
                found |= {f"{home}: {name}.{key}": one for key, one in own.items()}
    return found


def load_everything() -> None:
    for found in pkgutil.walk_packages(tw.__path__, "thalweg."):
        if not found.name.endswith("__main__"):
            with suppress(ImportError):  # of an optional library
                importlib.import_module(found.name)
    for name in tw.__all__:
        getattr(tw, name)


if __name__ == "__main__":
    if sys.argv[1] == "loaded":
        calls()
        print(*(name for name in sys.modules if name.startswith("thalweg.")), sep="\n")
    else:
        load_everything()
        before = snapshot()
        calls()
        exec("".join(sys.argv[2:]))
        after = snapshot()
        print(*(key for key in before if before[key] != after[key]), *(after.keys() - before.keys()), sep="\n")
