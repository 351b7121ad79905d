"""Random checkpoints of every family: whole, usable at once, and refused where they cannot be."""

import json

import pytest
from browser import ALL
from safetensors.torch import save_file
from small import loaded

import main
from configs.fields import SettingsError
from scripts.checkpoints import published
from scripts.tools.random_checkpoint import MODELS, target_folder, write, writer_of

SIZES = {
    "lumina_mgpt": "64",
    "lumina_mgpt2": "64",
    "emu3": "64",
    "emu3_5": "128",
    "glm_image": "96",
}


def test_every_public_model_has_one() -> None:
    assert all(callable(writer_of(name, size)) for name in MODELS for size in ("small", "full"))


@pytest.mark.parametrize("model", MODELS if ALL else ["llamagen"])
def test_small_ones_are_whole_and_generate(model, tmp_path, capsys) -> None:
    write(model=model, output=str(tmp_path / "model"))
    printed = capsys.readouterr().out
    assert printed.startswith(f"python main.py generate_images --model {model} --model_path ")
    given = [f"--model={model}", f"--model_path={tmp_path / 'model'}", "--device=cpu"]
    given += [f"--target_size={SIZES[model]}"] if model in SIZES else []
    assert main.main(["inspect", *given]) == 0
    for method in ("jacobi", "adt"):
        out = f"--output_dir={tmp_path / method}"
        words = [*given, "--prompt=a red cat", f"--method={method}", out]
        assert main.main(["generate_images", *words]) == 0
        assert (tmp_path / method / "img" / "00000_0.png").is_file()


def test_a_full_one_is_written_shard_by_shard(tmp_path, monkeypatch) -> None:
    sizes = []

    def save(tensors, *words) -> None:
        sizes.append(sum(tensor.nbytes for tensor in tensors.values()))
        save_file(tensors, *words)

    monkeypatch.setattr(published, "save_file", save)
    monkeypatch.setattr(published, "SHARD_BYTES", 20_000_000)
    given = {"model": "anole", "size": "full", "output": str(tmp_path)}
    write(**given, scale=32, layers=1)
    assert len(sizes) > 2 and max(sizes) <= 20_000_000, "all at once are too much at full size"
    folder = target_folder("anole", tmp_path)
    assert main.main(["inspect", "--model", "anole", "--model_path", str(tmp_path)]) == 0
    target = loaded(folder, "anole")
    assert (target.grid.tokens, target.vocab.first_id, target.vocab.size) == (1024, 4, 8192)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = {path.name for path in folder.glob("*.safetensors")}
    assert files == set(index["weight_map"].values()) and len(files) == 2
    assert index["metadata"]["total_size"] == sum(sizes[-2:])
    with pytest.raises(SettingsError, match="--output: expected a folder without a checkpoint"):
        write(**given, scale=16, layers=1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "tiny"}, "--model: expected anole, .*image_gpt, got 'tiny'"),
        ({"model": "anole", "size": "big"}, "--size: expected small or full, got 'big'"),
        ({"model": "anole", "size": "full", "scale": 3}, "--scale: expected 1, 2, "),
        (
            {"model": "anole", "scale": 2},
            "--scale: expected none, except with --model anole --size",
        ),
        ({"model": "emu3", "size": "full", "layers": 2}, "--layers: expected none, except with"),
    ],
)
def test_what_cannot_be_written_is_refused(given, message, tmp_path) -> None:
    with pytest.raises(SettingsError, match=message) as refused:
        write(**given, output=str(tmp_path / "new"))
    assert "\n" not in str(refused.value) and not (tmp_path / "new").exists()
