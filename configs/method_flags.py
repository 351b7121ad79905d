"""The flags of methods: which of them a method has, and the settings that they make."""

from configs.acceptance import RELAXED, LanternSettings
from configs.fields import SettingsError, parse_text, refuse, settings_fields
from configs.flags import check_known, flags_of
from configs.given import Values
from configs.methods import METHODS, AdtSettings, MethodSettings

METHOD_FLAGS = [
    *settings_fields(MethodSettings),
    *settings_fields(AdtSettings),
    *settings_fields(LanternSettings),
]


def with_method(recipe: Values, given: Values) -> tuple[Values, Values, MethodSettings]:
    """Recipe, command line and the method that they say; a method of the command line leaves out what the recipe sets
    for another one."""
    values = recipe | given
    if any(name in recipe and values[name] != recipe[name] for name in ("method", "verifier")):
        kept = applicable(values)
        recipe = {name: v for name, v in recipe.items() if name not in METHOD_FLAGS or name in kept}
        values = recipe | given
    return recipe, given, _method({name: values[name] for name in METHOD_FLAGS if name in values})


def listed_method(entry: str, shared: Values, source: str = "--methods") -> MethodSettings:
    """One method of --methods, `name[:flag=value...]`, with the shared values that apply to it; source: for errors."""
    name, *options = entry.split(":")
    if name not in METHODS:
        allowed = f"name[:flag=value...], by commas, with a name of {', '.join(METHODS)}"
        raise SettingsError(f"{source}: found {entry!r}; allowed: {allowed}")
    flags = {
        flag: f
        for flag, f in flags_of("benchmark").items()
        if flag in METHOD_FLAGS and flag != "method"
    }
    own: Values = {}
    try:
        for option in options:
            flag, equals, text = option.partition("=")
            check_known(flag, flags)
            if not equals or flag in own:
                refuse(flag, option, "flag=value, once")
            own[flag] = parse_text(flags[flag], flag, text)
        fitting = applicable(shared | own | {"method": name})
        kept = {flag: value for flag, value in shared.items() if flag in fitting}
        return _method(kept | own | {"method": name})
    except SettingsError as error:
        raise SettingsError(f"{source}, in {entry!r}: {error}") from error


def _method(values: Values) -> MethodSettings:
    plain = {
        name: value for name, value in values.items() if name in settings_fields(MethodSettings)
    }
    method, verifier = (
        MethodSettings(method=plain.get("method", "adt")).method,
        plain.get("verifier", "exact"),
    )
    parts = {}
    for name, owner, fits, where in (
        ("adt", AdtSettings, method == "adt", f"--method adt, not with --method {method}"),
        ("lantern", LanternSettings, verifier in RELAXED,
         f"--verifier {' or '.join(RELAXED)}, not with --verifier {verifier}"),
    ):  # fmt: skip
        flags = {flag: f.name for flag, f in settings_fields(owner).items() if flag in values}
        if flags and not fits:
            flag = next(iter(flags))
            refuse(flag, values[flag], f"only with {where}")
        parts[name] = (
            owner(**{field: values[flag] for flag, field in flags.items()}) if flags else None
        )
    return MethodSettings(**plain, **parts)


def applicable(values: Values) -> list[str]:
    """The method flags that have an effect with the method and the verifier of these values."""
    method, verifier = values.get("method", "adt"), values.get("verifier", "exact")
    adt = settings_fields(AdtSettings) if "adt" in METHODS.get(method, {}) else ()
    lantern = settings_fields(LanternSettings) if verifier in RELAXED and method != "ar" else ()
    return [
        "method",
        *METHODS.get(method, {}),
        *([] if method == "ar" else ["verifier"]),
        *adt,
        *lantern,
    ]
