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

# Compiles SQLite, QuickJS, librdkafka and zstd without optimisation and debug information, in a seventh of the time. For every build
# but a release.
quick_c_libraries() {
	export CFLAGS="${CFLAGS:--g0 -O0}"
}

# Makes cargo compile the workspace with clippy's driver, which lints and generates code in one pass. `make lint` and `make test` share the
# result, so that nothing is compiled twice; libraries are compiled as always. `cargo clippy` would only check, and check them too.
lint_while_compiling() {
	RUSTC_WORKSPACE_WRAPPER=$(rustup which clippy-driver 2>/dev/null || command -v clippy-driver) ||
		fail "clippy is missing; install it with: rustup component add clippy"
	export RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS=-Dwarnings
}

# Builds target/debug/tidewire of what `cargo test --workspace` has compiled already. Without a test among the targets, or
# with `-p tidewire`, the dependencies have other features: all of it would be compiled a second time, and kept twice.
build_server() {
	quick_c_libraries
	cargo build --quiet --workspace --bin tidewire --test memory
}
