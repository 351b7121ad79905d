#!/usr/bin/env bash
# Draws the top of a report as a PNG: report_picture.sh REPORT.html PICTURE.png [WIDTH HEIGHT]. Needs
# Chromium.
set -euo pipefail
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)
"$browser" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --window-size="${3:-1100},${4:-1240}" \
    --screenshot="$(realpath -m "$2")" "file://$(realpath "$1")"
