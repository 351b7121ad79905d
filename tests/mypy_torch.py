"""A plugin of mypy: what a network looks up by name may be of any type.

torch declares `Module.__getattr__` as Tensor | Module, so without this, every use of a submodule
that its class does not declare would be an error.
"""

from collections.abc import Callable

from mypy.plugin import AttributeContext, Plugin
from mypy.types import AnyType, Type, TypeOfAny, UnionType, get_proper_type

_LOOKED_UP = {"torch._tensor.Tensor", "torch.nn.modules.module.Module"}


class TorchPlugin(Plugin):
    """Types attributes that only `Module.__getattr__` finds."""

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        """Return what types an attribute of networks; None for all others."""
        return _looked_up if fullname.startswith("torch.nn.modules.module.Module.") else None


def _looked_up(context: AttributeContext) -> Type:
    declared = get_proper_type(context.default_attr_type)
    if isinstance(declared, UnionType):
        items = {getattr(get_proper_type(t), "type", None) for t in declared.items}
        if {getattr(info, "fullname", None) for info in items} == _LOOKED_UP:
            return AnyType(TypeOfAny.special_form)
    return declared


def plugin(version: str) -> type[Plugin]:
    """Return the plugin, as mypy asks for it."""
    return TorchPlugin
