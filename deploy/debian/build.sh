#!/usr/bin/env bash
# build.sh UV WHEEL OUT: write OUT/kneewatch_VERSION_ARCH.deb, with WHEEL and what it needs in an environment of
# Debian's python3 below /opt/kneewatch. Needs dpkg-deb and python3-venv; the versions are those of constraints.txt.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
uv=$1 wheel=$2 out=$3
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
chmod 755 "$root"
umask 022

minor=$(/usr/bin/python3 -c 'import sys; print(sys.version_info.minor)')
home=$root/opt/kneewatch
"/usr/bin/python3.$minor" -m venv --without-pip "$home"
"$uv" pip install --quiet --python "$home/bin/python" --link-mode copy -c "$here/../../constraints.txt" "$wheel[nvml]"
version=$("$home/bin/kneewatch" --version | sed -nE '1s/^[^0-9]*([^ ]+).*/\1/p')
find "$home/bin" -type f ! -name kneewatch -delete # scripts of others, and activate
grep -rlI --null "$root" "$home" | xargs -0 --no-run-if-empty sed -i "s|$root||g"
find "$home" -name __pycache__ -prune -exec rm -r {} +

install -Dm644 "$here/kneewatch.service" "$root/usr/lib/systemd/system/kneewatch.service"
install -Dm644 "$here/kneewatch.sysusers" "$root/usr/lib/sysusers.d/kneewatch.conf"
install -Dm640 "$here/kneewatch.yml" "$root/etc/kneewatch/kneewatch.yml"
install -Dm644 "$here/../../README.md" "$root/usr/share/doc/kneewatch/README.md"
install -Dm644 "$here/../../LICENSE" "$root/usr/share/doc/kneewatch/copyright"
mkdir -p "$root/usr/bin" "$root/DEBIAN"
ln -s /opt/kneewatch/bin/kneewatch "$root/usr/bin/kneewatch"
install -m755 "$here/postinst" "$here/prerm" "$here/postrm" "$root/DEBIAN/"
echo /etc/kneewatch/kneewatch.yml >"$root/DEBIAN/conffiles"
arch=$(dpkg --print-architecture)
cat >"$root/DEBIAN/control" <<CONTROL
Package: kneewatch
Version: $version
Architecture: $arch
Maintainer: Kneewatch's developers <https://github.com/kneewatch/kneewatch/issues>
Depends: python3.$minor, systemd
Section: net
Priority: optional
Homepage: https://github.com/kneewatch/kneewatch
Installed-Size: $(du -sk --exclude=DEBIAN "$root" | cut -f1)
Description: SLO monitor and capacity probe for vLLM
 Measures a live vLLM from the client's side, finds the load at which it no longer keeps its objectives, and exports
 both to Prometheus. Edit /etc/kneewatch/kneewatch.yml, then: systemctl enable --now kneewatch
CONTROL
mkdir -p "$out"
dpkg-deb --root-owner-group --build "$root" "$out/kneewatch_${version}_$arch.deb"
