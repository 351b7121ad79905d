#!/usr/bin/env bash
# Downloads the prompt sets into configs/prompts: PartiPrompts (0.1 MB) and the MS-COCO 2017 validation
# captions (from an archive of 253 MB, which is deleted afterwards), or only the one that is named:
# get_prompts.sh [PartiPrompts | MSCOCO2017Val]. Files that are already there are kept. Without
# internet, copy the files there.
# Variable: TO, another folder (then --prompt_file names the files).
set -euo pipefail
cd "$(dirname "$0")/.."
TO=${TO:-configs/prompts}
mkdir -p "$TO"
part="$TO/download.partial"
trap 'rm -f "$part" "$part.why"' EXIT

fail() { echo "error: $1" >&2; exit 1; }

fetch() { # fetch URL FILE: download it to $part; FILE is what users can copy instead
  curl --fail --location --show-error --silent --output "$part" "$1" 2>"$part.why" ||
    fail "$TO/$2: not here, and $1 could not be downloaded ($(tail -1 "$part.why")); copy the file there by other means"
}

case ${1:-all} in all | PartiPrompts | MSCOCO2017Val) ;; *)
  fail "$1: no such prompt set; allowed: PartiPrompts, MSCOCO2017Val, or nothing for both" ;;
esac
if [ "${1:-PartiPrompts}" = PartiPrompts ]; then
  if [ ! -e "$TO/PartiPrompts.tsv" ]; then
    fetch https://raw.githubusercontent.com/google-research/parti/main/PartiPrompts.tsv PartiPrompts.tsv
    mv "$part" "$TO/PartiPrompts.tsv"
  fi
  echo "$TO/PartiPrompts.tsv"
fi
if [ "${1:-MSCOCO2017Val}" = MSCOCO2017Val ]; then
  if [ ! -e "$TO/captions_val2017.json" ]; then
    command -v unzip >/dev/null || fail "unzip: not installed; it takes the captions out of their archive"
    fetch http://images.cocodataset.org/annotations/annotations_trainval2017.zip captions_val2017.json
    unzip -p "$part" annotations/captions_val2017.json >"$TO/captions_val2017.json.partial"
    mv "$TO/captions_val2017.json.partial" "$TO/captions_val2017.json"
  fi
  echo "$TO/captions_val2017.json"
fi
