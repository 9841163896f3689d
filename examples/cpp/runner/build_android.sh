#!/usr/bin/env bash
# Builds edgeopt-runner for phones, and puts it and ONNX Runtime's library into FOLDER/ABI.
#
#   examples/cpp/runner/build_android.sh FOLDER [ABI]...        # arm64-v8a where none is named
#
# Needs cmake, curl and Android's NDK, whose folder ANDROID_NDK_HOME names. ONNX Runtime comes from Maven Central, package
# com.microsoft.onnxruntime:onnxruntime-android; ONNXRUNTIME_AAR names a file of it that is here already.
#
#   ONNXRUNTIME_VERSION    which one; else that of the Python package, so that both sides compute alike
#   ONNXRUNTIME_SHA256     what the file must hash to; without it, only Maven's own sum of the transfer is looked at
set -euo pipefail
folder=${1:?name the folder, for example android_runner}
shift
abis=("${@:-arm64-v8a}")
ndk=${ANDROID_NDK_HOME:-${ANDROID_NDK:-}}
toolchain="$ndk/build/cmake/android.toolchain.cmake"
if [ ! -f "$toolchain" ]; then
  echo "no NDK: set ANDROID_NDK_HOME to the folder that holds build/cmake/android.toolchain.cmake" >&2
  exit 1
fi
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

sum() {  # of a file: 1 or 256
  if command -v "sha${1}sum" > /dev/null; then "sha${1}sum" "$2"; else shasum -a "$1" "$2"; fi | cut -d ' ' -f 1
}

aar=${ONNXRUNTIME_AAR:-}
if [ -z "$aar" ]; then
  version=${ONNXRUNTIME_VERSION:-$(python3 -c 'import onnxruntime; print(onnxruntime.__version__)' 2> /dev/null || true)}
  if [ -z "$version" ]; then
    echo "python3 has no onnxruntime that says which version: set ONNXRUNTIME_VERSION" >&2
    exit 1
  fi
  address="https://repo1.maven.org/maven2/com/microsoft/onnxruntime/onnxruntime-android/$version"
  aar="$work/onnxruntime.aar"
  curl -fSL --retry 3 -o "$aar" "$address/onnxruntime-android-$version.aar" || {
    echo "no onnxruntime-android $version: set ONNXRUNTIME_VERSION to another one of Maven Central" >&2
    exit 1
  }
  wanted=$(curl -fsSL "$address/onnxruntime-android-$version.aar.sha1" | cut -c 1-40)
  if [ "$(sum 1 "$aar")" != "$wanted" ]; then
    echo "the file that came is not the one of Maven Central: try again" >&2
    exit 1
  fi
fi
hash=$(sum 256 "$aar")
if [ -n "${ONNXRUNTIME_SHA256:-}" ] && [ "$hash" != "$ONNXRUNTIME_SHA256" ]; then
  echo "$aar hashes to $hash, not to ONNXRUNTIME_SHA256" >&2
  exit 1
fi
mkdir -p "$work/aar"
(cd "$work/aar" && cmake -E tar xf "$(cd "$(dirname "$aar")" && pwd)/$(basename "$aar")")

for abi in "${abis[@]}"; do
  library="$work/aar/jni/$abi/libonnxruntime.so"
  if [ ! -f "$library" ]; then
    echo "the package holds no library for $abi: $(ls "$work/aar/jni" | tr '\n' ' ')" >&2
    exit 1
  fi
  cmake -S "$here" -B "$work/$abi" -DCMAKE_TOOLCHAIN_FILE="$toolchain" -DANDROID_ABI="$abi" \
    -DANDROID_PLATFORM=android-24 -DANDROID_STL=c++_static -DCMAKE_BUILD_TYPE=Release \
    -DONNXRUNTIME_INCLUDE="$work/aar/headers" -DONNXRUNTIME_LIBRARY="$library" > /dev/null
  cmake --build "$work/$abi" > /dev/null
  mkdir -p "$folder/$abi"
  cp "$work/$abi/edgeopt-runner" "$library" "$folder/$abi/"
done
echo "edgeopt-runner for ${abis[*]} in $folder, ONNX Runtime's package has the SHA-256 $hash"
echo "export EDGEOPT_ANDROID_RUNNER=$(cd "$folder" && pwd)"
