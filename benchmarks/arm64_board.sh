#!/usr/bin/env bash
# An arm64 board without one: Debian for Arm under qemu's user emulation, behind an sshd of its own. Its numbers are
# Arm's (kernels, wheels, placement); its times mean nothing. Needs root, a Debian host and 2 GB. For numbers alone
# arm64_python.sh is enough, which makes a Python in seconds.
#
#   benchmarks/arm64_board.sh /var/tmp/board            # makes it where it is absent, then serves until Ctrl-C
#   EDGEOPT_SSH="ssh -F /var/tmp/board/config" edgeopt optimize model.onnx -t cpu --on ssh://arm
#
# Source: Debian wiki, EmDebian/CrossDebootstrap; qemu-user(1). qemu 7.2 hands the host's /proc/cpuinfo on, so the board
# gets one of a Cortex-A76, and the host's /sys, without which XNNPACK finds no float16. Its processor is a Cortex-A76
# too: with all extensions ONNX Runtime takes its SME kernels, which QEMU 7.2 computes wrongly, and 10.0 right.
set -euo pipefail
folder=${1:?usage: arm64_board.sh FOLDER}
root=$folder/root
mkdir -p "$folder"
if [ ! -x "$root/usr/sbin/sshd" ]; then
  apt-get install -y -q --no-install-recommends qemu-user-static binfmt-support debootstrap openssh-client
  debootstrap --arch=arm64 --variant=minbase \
    --include=python3,python3-venv,openssh-server,ca-certificates,libgl1,libglib2.0-0 bookworm "$root"
fi
"$(dirname "$0")/arm64_cpuinfo.sh" > "$folder/cpuinfo"
mounted() { grep -q " $1 " /proc/mounts; }
mounted "$root/proc" || mount -t proc proc "$root/proc"
mounted "$root/proc/cpuinfo" || mount --bind "$folder/cpuinfo" "$root/proc/cpuinfo"
mounted "$root/sys" || mount -t sysfs sysfs "$root/sys"
mounted "$root/dev" || mount --bind /dev "$root/dev"
for name in host user; do
  [ -e "$folder/$name" ] || ssh-keygen -q -t ed25519 -N "" -f "$folder/$name"
done
mkdir -p "$root/root/.ssh" "$root/run/sshd"
cp "$folder/user.pub" "$root/root/.ssh/authorized_keys"
install -m 600 "$folder/host" "$root/etc/ssh/board_key"
cp /etc/resolv.conf "$root/etc/resolv.conf"
port=${PORT:-2299}
cat > "$root/etc/ssh/board.conf" << END
Port $port
ListenAddress 127.0.0.1
HostKey /etc/ssh/board_key
PidFile none
StrictModes no
UsePAM no
PermitRootLogin prohibit-password
SetEnv QEMU_CPU=cortex-a76
END
cat > "$folder/config" << END
Host arm
  HostName 127.0.0.1
  Port $port
  User root
  IdentityFile $folder/user
  IdentitiesOnly yes
  UserKnownHostsFile $folder/known
  StrictHostKeyChecking accept-new
END
echo "EDGEOPT_SSH=\"ssh -F $folder/config\" edgeopt doctor --on ssh://arm"
exec chroot "$root" /usr/sbin/sshd -D -e -f /etc/ssh/board.conf
