#!/usr/bin/env bash
# Python for Arm on another processor, for numbers and never for times: Debian's arm64 interpreter unpacked into a folder
# and wheels for aarch64 beside it, run by qemu-aarch64. Needs neither root nor binfmt_misc; a Debian system with
# qemu-user, a python3 with pip, and 390 MB.
#
#   benchmarks/arm64_python.sh /var/tmp/arm64                 # another Python with pip: a second argument
#   QEMU_CPU=cortex-a72 /var/tmp/arm64/python numbers.py
#   PYTHONPATH=toolkit /var/tmp/arm64/python -c 'import edgeopt; edgeopt.Runtime.load("bundle")'
#
# tests/device/test_arm64.py runs in it, found by EDGEOPT_ARM64=/var/tmp/arm64. A whole machine behind an sshd: arm64_board.sh.
set -euo pipefail
folder=${1:?usage: arm64_python.sh FOLDER [PYTHON]}
pip=("${2:-python3}" -m pip)
# Of the extras `cpu`, `ncnn` and `litert`, what a bundle's runtime imports.
packages=(numpy onnxruntime opencv-python-headless psutil ncnn ai-edge-litert flatbuffers ml-dtypes)
here=$(cd "$(dirname "$0")" && pwd)
[ ! -x "$folder/python" ] || { echo "$folder/python is there already"; exit 0; }
emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) ||
  { echo "no qemu-aarch64: apt-get install qemu-user" >&2; exit 1; }
command -v apt-get > /dev/null || { echo "no apt-get: this needs a Debian system" >&2; exit 1; }
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
rm -rf "$folder/root" "$folder/site"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# This system's own archives, asked for another architecture; its own lists and packages are not touched.
mkdir -p "$work/state/lists/partial" "$work/cache/archives/partial" "$folder/root/proc"
touch "$work/state/status"
options=(-q -y -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o APT::Install-Recommends=false
  -o Acquire::Languages=none -o "Dir::State=$work/state" -o "Dir::State::status=$work/state/status"
  -o "Dir::Cache=$work/cache" -o APT::Sandbox::User=root)
apt-get "${options[@]}" update > /dev/null
apt-get "${options[@]}" --download-only install python3-minimal libpython3-stdlib libstdc++6 > /dev/null
for package in "$work"/cache/archives/*.deb; do
  dpkg-deb -x "$package" "$folder/root"
done
interpreter=$folder/root/usr/bin/$(readlink "$folder/root/usr/bin/python3")
version=${interpreter##*python}
"$here/arm64_cpuinfo.sh" > "$folder/root/proc/cpuinfo"  # ONNX Runtime of x86's dies of a segmentation fault

tags=(--platform manylinux2014_aarch64)
for minor in $(seq 17 36); do
  tags+=(--platform "manylinux_2_${minor}_aarch64")
done
"${pip[@]}" install -q --target "$folder/site" --no-deps --no-compile --only-binary :all: --python-version "$version" \
  "${tags[@]}" "${packages[@]}"

# With all extensions, `max`, SME computes wrong products under QEMU 7.2, and right ones under 10.0.
cat > "$work/python" << END
#!/bin/sh
export QEMU_CPU="\${QEMU_CPU:-max,sme=off}" PYTHONPATH="$folder/site\${PYTHONPATH:+:\$PYTHONPATH}"
exec "$emulator" -L "$folder/root" "$interpreter" "\$@"
END
chmod +x "$work/python"
mv "$work/python" "$folder/python"  # last: a tree that is not whole has none
echo "$folder/python: Python $version for Arm"
