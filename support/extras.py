"""Packages that only some commands need, and the extra of pyproject.toml that installs them."""

EXTRAS = {
    "eval": ("torchvision", "matplotlib", "jinja2", "markupsafe", "open_clip", "torch_fidelity"),
    "glm": ("diffusers", "jinja2"),
    "demo": ("gradio", "starlette"),
    "train": ("accelerate",),
    "tensorboard": ("tensorboard",),
    "quantize": ("torchao",),
}


def install(extra: str) -> str:
    """Return the command that installs an extra."""
    return f"pip install -e '.[{extra}]' in the checkout"


def missing_extra(error: ModuleNotFoundError) -> str | None:
    """Return what to say of a module that is not installed; None for one that no extra installs."""
    module = (error.name or "").partition(".")[0]
    for extra, modules in EXTRAS.items():
        if module in modules:
            return (
                f"{module}: not installed; this command needs the extra {extra}: {install(extra)}"
            )
    return None
