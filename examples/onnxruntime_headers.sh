#!/usr/bin/env bash
# Puts ONNX Runtime's C and C++ headers under FOLDER/onnxruntime, from Debian's package libonnxruntime-dev of release 13
# (trixie). For systems of Debian or Ubuntu that have no such package themselves; nothing is installed.
#
#   examples/onnxruntime_headers.sh /usr/local/include
set -euo pipefail
folder=${1:?name the folder, for example /usr/local/include}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$work/unpacked"
touch "$work/state/status"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
echo "deb [signed-by=$keyring] http://deb.debian.org/debian trixie main" > "$work/sources.list"
options=(-q -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State=$work/state"
  -o "Dir::State::status=$work/state/status" -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
cd "$work"
apt-get "${options[@]}" update > /dev/null
apt-get "${options[@]}" download libonnxruntime-dev > /dev/null
dpkg -x libonnxruntime-dev_*.deb unpacked
mkdir -p "$folder"
cp -r unpacked/usr/include/onnxruntime "$folder/"
echo "headers of $(ls libonnxruntime-dev_*.deb) in $folder/onnxruntime"
