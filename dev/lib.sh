# Shared by the scripts beside it; sourced, not run.

say() {
	printf '%s\n' "tidewire: $*" >&2
}

fail() {
	say "$*"
	exit 1
}

has() {
	command -v "$1" >/dev/null 2>&1
}

# Debian keeps brokers where only root looks.
PATH="$HOME/.cargo/bin:$PATH:/usr/sbin:/usr/local/sbin"
export PATH

# Builds target/debug/tidewire of what `cargo test --workspace` has compiled already. With `-p tidewire` the
# dependencies have other features: all of it would be compiled a second time, and kept twice.
build_server() {
	cargo build --quiet --workspace --test crash
}
