# Functions that the scripts in dev/ and bench/ source.

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

# Debian installs brokers into directories that only the PATH of root contains.
PATH="$HOME/.cargo/bin:$PATH:/usr/sbin:/usr/local/sbin"
export PATH

# Makes all builds except release builds compile SQLite, QuickJS, librdkafka and zstd without optimisation and debug
# information. This takes a seventh of the time.
quick_c_libraries() {
	export CFLAGS="${CFLAGS:--g0 -O0}"
}

# Makes cargo compile the crates of the workspace with clippy's driver, which lints and generates code in one pass. So
# `make lint` and `make test` share one build. `cargo clippy` generates no code, and would check all dependencies again.
lint_while_compiling() {
	RUSTC_WORKSPACE_WRAPPER=$(rustup which clippy-driver 2>/dev/null || command -v clippy-driver) ||
		fail "clippy is missing; install it with: rustup component add clippy"
	export RUSTC_WORKSPACE_WRAPPER CLIPPY_ARGS=-Dwarnings
}

# Builds target/debug/tidewire from the crates that `cargo test --workspace` has compiled. Without a test among the targets,
# or with `-p tidewire`, cargo selects other features for the dependencies, and compiles and stores all of them again.
build_server() {
	quick_c_libraries
	cargo build --quiet --workspace --bin tidewire --test memory
}
