"""The base class of every error, and how errors carry their fields."""

from typing import Any, ClassVar, dataclass_transform


@dataclass_transform()
class _FieldsError(Exception):
    """Turns the annotated fields of a subclass into positional or keyword arguments."""

    _field_names: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = tuple(
            name for name, kind in cls.__dict__.get("__annotations__", {}).items() if "ClassVar" not in str(kind)
        )
        cls._field_names = cls._field_names + own

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        names = self._field_names
        values = dict(zip(names, args, strict=False))
        if len(args) > len(names) or values.keys() & kwargs.keys() or kwargs.keys() - set(names):
            raise TypeError(f"{type(self).__name__} takes {names}, got {args} and {kwargs}")
        values.update(kwargs)
        for name in names:
            if name not in values:
                if not hasattr(type(self), name):
                    raise TypeError(f"{type(self).__name__} lacks {name!r}")
                values[name] = getattr(type(self), name)
            setattr(self, name, values[name])
        super().__init__(*(values[name] for name in names))


class HelixError(_FieldsError):
    """The base class of every error this library raises."""

    code: ClassVar[str] = "helix_error"
    retryable: ClassVar[bool] = False

    def __str__(self) -> str:
        return (self.__doc__ or self.code).partition("\n")[0]
