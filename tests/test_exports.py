"""The public surface: sorted, complete, and nothing in it by accident."""

import types

import gateway


def test_exported_names_are_sorted_and_unique() -> None:
    constants = [name for name in gateway.__all__ if name.isupper()]
    classes = [name for name in gateway.__all__ if name[0].isupper() and not name.isupper()]
    functions = [name for name in gateway.__all__ if name[0].islower()]

    assert gateway.__all__ == [*sorted(constants), *sorted(classes), *sorted(functions)]
    assert len(set(gateway.__all__)) == len(gateway.__all__)


def test_every_public_attribute_is_exported_and_the_reverse() -> None:
    public = {
        name
        for name, value in vars(gateway).items()
        if not name.startswith("_") and not isinstance(value, types.ModuleType)
    }

    assert public == set(gateway.__all__)


def test_names_that_others_rely_on_are_where_they_look_for_them() -> None:
    from gateway.core.canonical import call_id, canonical

    assert canonical({"b": 1, "a": [1.0, None]}) == '{"a":[1,null],"b":1}'
    assert call_id("echo", {}) == "28535312633cb507c5892dc9480230e55c182e23fa7f5912a5560bb6644d50b9"
    assert (gateway.canonical, gateway.call_id) == (canonical, call_id)
