#!/bin/sh
# Prints a /proc/cpuinfo of two Cortex-A76: QEMU 7.2 hands the host's on.
features="fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
for core in 0 1; do
  printf 'processor\t: %s\nFeatures\t: %s\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd0b\n\n' "$core" "$features"
done
