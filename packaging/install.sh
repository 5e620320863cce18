#!/bin/sh
# Installs tidewire from the unpacked archive in which this script is, and a service of systemd.
#
# usage: ./install.sh [--prefix DIR] [--uninstall]
#
# --prefix DIR  Where bin and share are. Default: /usr/local
# --uninstall   Removes the installed files. The configuration, the data and the user stay.
#
# An existing configuration stays. Run it again with a newer archive to upgrade.
set -eu

fail() {
	echo "install.sh: $*" >&2
	exit 1
}

prefix=/usr/local
action=install
while [ $# -gt 0 ]; do
	case "$1" in
	--prefix)
		[ $# -gt 1 ] || fail "--prefix needs a directory"
		prefix=$2
		shift
		;;
	--uninstall) action=uninstall ;;
	*) fail "unknown option $1; see the comment at the head of the script" ;;
	esac
	shift
done
case "$prefix" in
/home | /home/* | /root | /root/*) fail "--prefix: the service cannot see $prefix; choose a directory outside of /home and /root" ;;
/*) ;;
*) fail "--prefix needs an absolute path, not $prefix" ;;
esac
cd "$(dirname "$0")"
[ "$(id -u)" = 0 ] || fail "run it as root"
unit=/etc/systemd/system/tidewire.service
has_systemd() {
	[ -d /run/systemd/system ]
}

if [ "$action" = uninstall ]; then
	! has_systemd || systemctl disable --now --quiet tidewire.service || true
	find bin share -type f | while read -r file; do
		rm -f "$prefix/$file"
	done
	rmdir "$prefix/share/doc/tidewire" 2>/dev/null || true
	rm -f "$unit"
	! has_systemd || systemctl daemon-reload
	echo "removed tidewire; the configuration in /etc/tidewire and the data in /var/lib/tidewire stay"
	exit 0
fi

# Fails on a machine of another kind or without a library, before anything is changed.
version=$(bin/tidewire version) || fail "the program does not run on this machine: check the architecture and the libraries libssl3 and zlib1g (tidewire-edge needs none)"
if ! getent passwd tidewire >/dev/null; then
	useradd --system --user-group --home-dir /var/lib/tidewire --no-create-home --shell /usr/sbin/nologin tidewire
fi
find bin share -type f | while read -r file; do
	mode=644
	[ "$file" != bin/tidewire ] || mode=755
	# The old program can still run, so it is replaced, not overwritten.
	mkdir -p "$(dirname "$prefix/$file")"
	install -m "$mode" "$file" "$prefix/$file.new"
	mv -f "$prefix/$file.new" "$prefix/$file"
done
mkdir -p /etc/tidewire
if [ ! -e /etc/tidewire/tidewire.toml ]; then
	install -m 640 etc/tidewire.toml /etc/tidewire/tidewire.toml
fi
# The configuration can contain password hashes.
chown root:tidewire /etc/tidewire /etc/tidewire/tidewire.toml
chmod 750 /etc/tidewire
mkdir -p /var/lib/tidewire
find /var/lib/tidewire/ ! -user tidewire -exec chown -h tidewire:tidewire {} +
chmod 700 /var/lib/tidewire
sed "s|/usr/bin/tidewire|$prefix/bin/tidewire|" lib/systemd/system/tidewire.service >"$unit"
chmod 644 "$unit"
echo "installed $version in $prefix"
if has_systemd; then
	systemctl daemon-reload
	systemctl enable --quiet tidewire.service
	systemctl restart tidewire.service
	echo "the service tidewire runs; its log: journalctl -u tidewire"
fi
