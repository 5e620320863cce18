#!/bin/bash
# Installs what the Makefile needs and is missing. Takes one word: build, test, lint, kafka, kerberos, postgres or redis.
# Says in one line what it does, does nothing when all is there, and says clearly where it may not.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=dev/lib.sh
. dev/lib.sh

MDBOOK_VERSION=0.5.2

# Runs a command as root, or says who has to.
as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif has sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
		sudo "$@"
	else
		fail "this needs root, and there is no sudo here. Run as root: $*"
	fi
}

# install_packages WHY PACKAGE...
install_packages() {
	local why=$1
	shift
	has apt-get || fail "$why is missing here, and this is no Debian or Ubuntu. Install it yourself (in Debian: $*)."
	say "installing $* with apt-get, for $why"
	as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq ||
		fail "apt-get update failed; is there a network? $why comes from: $*"
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
		fail "apt-get could not install $*, which $why comes from"
}

need_compiler() {
	# The cryptographic provider has C and assembler in it.
	has cc || install_packages "a C compiler" gcc libc6-dev
	# The Kafka client is C and C++, and uses the system's OpenSSL and zlib.
	{ has c++ && has make && has pkg-config && pkg-config --exists openssl zlib; } ||
		install_packages "the Kafka client" g++ make pkg-config libssl-dev zlib1g-dev
}

need_rust() {
	if ! has cargo; then
		has curl || install_packages "a download of Rust" curl ca-certificates
		say "installing rustup from static.rust-lang.org into ~/.cargo"
		# The installer goes by its name.
		local directory installer log
		directory=$(mktemp -d)
		installer=$directory/rustup-init
		log=$directory/log
		curl --proto '=https' --tlsv1.2 -sSf -o "$installer" \
			"https://static.rust-lang.org/rustup/dist/$(uname -m)-unknown-linux-gnu/rustup-init" ||
			fail "static.rust-lang.org cannot be reached; install Rust $(toolchain) by hand (https://rustup.rs)"
		chmod +x "$installer"
		"$installer" -y -q --no-modify-path --profile minimal --default-toolchain none >"$log" 2>&1 ||
			fail "rustup could not be installed: $(tail -n 1 "$log")"
		rm -rf "$directory"
	fi
	need_toolchain
}

toolchain() {
	sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml
}

# rustup installs the toolchain by itself at the first call of cargo, but not silently and not always.
need_toolchain() {
	local wanted home
	wanted=$(toolchain)
	home=${RUSTUP_HOME:-$HOME/.rustup}
	if ! has rustup; then
		local found
		found=$(cargo --version | cut -d' ' -f2)
		[ "$found" = "$wanted" ] || say "this cargo is $found, the project is built with $wanted; going on without rustup"
		return
	fi
	if ! compgen -G "$home/toolchains/$wanted-*/bin/clippy-driver" >/dev/null; then
		say "installing Rust $wanted with rustup"
		rustup toolchain install "$wanted" --profile minimal --component rustfmt,clippy --no-self-update >/dev/null 2>&1 ||
			fail "rustup could not install Rust $wanted; is static.rust-lang.org reachable?"
	fi
}

need_mosquitto() {
	local had_broker=no
	! has mosquitto || had_broker=yes
	if ! has mosquitto || ! has mosquitto_pub || ! has mosquitto_passwd; then
		install_packages "Mosquitto, the broker that tests compare with" mosquitto mosquitto-clients
		[ "$had_broker" = yes ] || stop_installed_service mosquitto
	fi
}

# Kafka itself comes from Maven Central, by dev/kafka.
need_kafka() {
	has java || install_packages "Kafka" default-jre-headless
	has mvn || install_packages "fetching Kafka" maven
	has openssl || install_packages "certificates for Kafka" openssl
}

# Also what a build with the feature `gssapi` needs.
need_kerberos() {
	has krb5kdc || install_packages "Kerberos" krb5-kdc krb5-admin-server
	has kinit || install_packages "Kerberos tickets" krb5-user
	[ -f /usr/include/sasl/sasl.h ] || install_packages "Kerberos in librdkafka" libsasl2-dev libsasl2-modules-gssapi-mit
}

need_redis() {
	if ! has redis-server || ! has redis-cli; then
		install_packages "Redis, for the connector's tests" redis-server redis-tools
		stop_installed_service redis-server
	fi
}

need_postgres() {
	if ! compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null && ! has initdb; then
		install_packages "PostgreSQL, for the connector's tests" postgresql
		stop_installed_service postgresql
	fi
}

# The console is tested in a real browser, by npm packages that fetch none of their own.
need_browser() {
	{ has node && has npm; } || install_packages "the console's tests" nodejs npm
	has chromium-headless-shell || install_packages "the console's tests" chromium-headless-shell
}

# Debian starts a service at once, on its usual port. One that was there before is its owner's business.
stop_installed_service() {
	if has systemctl && systemctl is-active --quiet "$1" 2>/dev/null; then
		say "stopping the $1 service that the package has started (systemctl start $1 brings it back)"
		as_root systemctl disable --now --quiet "$1"
	fi
}

need_mdbook() {
	need_rust
	say "installing mdbook with cargo, for the web site of the book"
	cargo install --quiet --locked --no-default-features --features search "mdbook@$MDBOOK_VERSION" ||
		fail "cargo could not install mdbook $MDBOOK_VERSION"
}

case "${1:-build}" in
build)
	need_compiler
	need_rust
	;;
test)
	need_mosquitto
	need_postgres
	need_redis
	need_kafka
	need_browser
	;;
kafka)
	need_kafka
	;;
kerberos)
	need_kerberos
	;;
postgres)
	need_postgres
	;;
redis)
	need_redis
	;;
lint)
	has shellcheck || install_packages "the check of scripts" shellcheck
	has python3 || install_packages "the check of wording" python3
	;;
docs)
	has mdbook || need_mdbook
	;;
*)
	fail "dev/setup.sh takes build, test, lint, docs, kafka, kerberos, postgres or redis, not $1"
	;;
esac
